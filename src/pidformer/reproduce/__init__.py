"""The paper's tables and figures at a scale of one's own, as a plan that can be resumed."""

from pidformer.reproduce.jobs import Job, Plan
from pidformer.reproduce.plan import make_plan
from pidformer.reproduce.run import Outcome, reproduce, run_plan

__all__ = ["Job", "Outcome", "Plan", "make_plan", "reproduce", "run_plan"]
