"""Steps' shards are written by a thread while training goes on, and listed one step later."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType

from behaviortrace.capture.ranks import Ranks, Shard
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.run.manifest import ShardEntry


class ShardWriter:
    """Writes shards off the critical path; at most one step waits to be listed.

    Encoding, hashing and flushing to disk happen in a thread. Listing in the manifest needs all
    processes, so it is done by the caller's thread, when the next step is submitted or
    :meth:`settle` is called. Files of a step that was never listed are strays, which a resume
    removes.

    Args:
        run: where shards go.
        ranks: the processes that train together.
    """

    def __init__(self, run: Run, ranks: Ranks) -> None:
        self.run, self.ranks = run, ranks
        self._pool = ThreadPoolExecutor(1, "behaviortrace-shards")
        self._waiting: Future[list[ShardEntry]] | None = None

    def submit(self, step: int, shards: Sequence[Shard]) -> None:
        """List what was submitted before, and begin to write a step's shards.

        Raises:
            BehaviorTraceError: the step before could not be written.
        """
        self.settle()
        self._waiting = self._pool.submit(self._prepare, step, shards)

    def settle(self) -> None:
        """Wait until everything submitted is on disk and listed; in all processes at once.

        Raises:
            BehaviorTraceError: one of the processes could not write; in all of them.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        entries: list[ShardEntry] = []
        problem: BehaviorTraceError | None = None
        try:
            entries = waiting.result()
        except BehaviorTraceError as error:
            problem = error
        self.ranks.commit(self.run, entries, problem)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.settle()
            elif self.ranks.count == 1:  # others may not get here to agree
                with suppress(BehaviorTraceError):
                    self.settle()
        finally:
            self._pool.shutdown()

    def _prepare(self, step: int, shards: Sequence[Shard]) -> list[ShardEntry]:
        return [
            self.run.prepare_shard(store, step, self.ranks.rank, frame, tensors)
            for store, frame, tensors in shards
        ]
