"""Scores of rollouts, steps and token spans: estimators run over a run's sketches and targets."""

from behaviortrace.scores.stage import score, score_run
from behaviortrace.scores.tokens import token_rows

__all__ = ["score", "score_run", "token_rows"]
