"""The paper's tables and figures, and the demonstration, as plans that can be resumed."""

from pidformer.reproduce.demo_plan import Demo, demo
from pidformer.reproduce.jobs import Job, Plan
from pidformer.reproduce.plan import make_plan
from pidformer.reproduce.run import Outcome, run_plan
from pidformer.reproduce.start import reproduce

__all__ = ["Demo", "Job", "Outcome", "Plan", "demo", "make_plan", "reproduce", "run_plan"]
