"""What a copy without weights and sketches is called, and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterable

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run.ledger import Ledger
from behaviortrace.run.manifest import NAME, FileEntry

COPY = f"a copy without weights and sketches ({NAME}: left_out)"
REMEDY = "use the run that it was made from"


def refuse_copy(ledger: Ledger, what: str) -> None:
    """Refuse what a copy without weights and sketches cannot do.

    Raises:
        BehaviorTraceError: the run is such a copy.
    """
    if ledger.manifest.left_out:
        raise BehaviorTraceError(f"{ledger.root} is {COPY}, so it cannot {what}; {REMEDY}")


def left_out(files: Iterable[FileEntry]) -> str | None:
    """What is missing in a copy, in words; None in a run of its own."""
    sizes = [entry.bytes for entry in files]
    if not sizes:
        return None
    return f"{len(sizes):,} files of weights and sketches, {sum(sizes) / 1e9:.2f} GB"
