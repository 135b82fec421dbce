"""The checklist: one small pure function a line, each with its evidence.

Reading order: evidence (what a line may look at), collect (how it is taken from a run), registry
(how a line is declared), one file per line, conclusion (the verdict in a sentence), stage (checks a
run and stores the verdicts).
"""

from behaviortrace.checklist.collect import gather
from behaviortrace.checklist.conclusion import believed, conclusion
from behaviortrace.checklist.evidence import Coverage, Evidence, HeldOut, Replicate, Targets
from behaviortrace.checklist.registry import Check, Finding, check, judge, registered

__all__ = [
    "Check",
    "Coverage",
    "Evidence",
    "Finding",
    "HeldOut",
    "Replicate",
    "Targets",
    "believed",
    "check",
    "conclusion",
    "gather",
    "judge",
    "registered",
]
