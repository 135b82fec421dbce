"""Fresh completions from a fixed checkpoint, and the policy that made them."""

from behaviortrace.draws.checkpoint import Policy, open_policy
from behaviortrace.draws.stage import draw

__all__ = ["Policy", "draw", "open_policy"]
