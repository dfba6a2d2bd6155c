"""A registered study: a file of rows, seeds, hypotheses and measures, as a plan of jobs."""

from pidformer.reproduce.study.file import StudyPlan, StudyRow, load_study

__all__ = ["StudyPlan", "StudyRow", "load_study"]
