"""One job in a process of its own that may be killed at any moment.

``python -m behaviortrace.processes.worker PARENT MODULE`` reads a job of a module from its standard
input. What became of it is told by a file, so that it is told alike whoever started the process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from behaviortrace.errors import BehaviorTraceError

_TELL_SECONDS = 0.25  # least time between two reports of progress
_PARENT_SECONDS = 0.1  # between two looks at whether the parent is still there


class Beacon:
    """A progress callback that keeps one small file up to date.

    The file holds a JSON object: ``pid``, ``stage``, ``done``, ``total`` and ``seconds_left``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = 0.0

    def __call__(self, stage: str, done: int, total: int, seconds_left: float | None) -> None:
        """Tell where the work stands; at most four times a second, but every begin and end."""
        moment = time.monotonic()
        if 0 < done < total and moment - self._told < _TELL_SECONDS:
            return
        self._told = moment
        standing = {"stage": stage, "done": done, "total": total, "seconds_left": seconds_left}
        with suppress(OSError):  # work does not fail for want of telling
            _put(self._path, {"pid": os.getpid(), **standing})


def guarded(module: str, text: str) -> None:
    """Work at a job, given as text, and leave its outcome in the job's file, whatever happens.

    The outcome is a JSON object: ``ended`` ("finished"; "refused": the user has something to mend,
    another try is useless; "broken": another try may do) and ``reason``, one line.

    Args:
        module: that does it; see :class:`behaviortrace.processes.job.Job`.
        text: the job.
    """
    doing = importlib.import_module(module)
    job = doing.parse(text)
    outcome = {"ended": "finished", "reason": None}
    progress = Beacon(job.aside("progress"))
    progress("start", 0, 1, None)  # the imports that follow take seconds
    try:
        doing.work(job, progress)
    except BehaviorTraceError as error:
        outcome = {"ended": "refused", "reason": " ".join(str(error).split())}
    except Exception as error:  # told by the outcome, with its traceback in the job's log
        traceback.print_exc()
        what = " ".join(str(error).split())
        outcome = {"ended": "broken", "reason": f"{type(error).__name__}: {what}"}
    _put(job.aside("outcome"), outcome)


def _put(path: Path, data: dict[str, Any]) -> None:
    """Replace a small file whole; unlike a run's files it need not survive a power cut."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(data), encoding="utf-8")
    os.replace(aside, path)


def _follow(parent: int) -> None:
    """End this process soon after its parent has ended, so that nothing is worked at unseen."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Entry of the process: its parent's id and a module as arguments, a job on stdin."""
    _follow(int(sys.argv[1]))
    guarded(sys.argv[2], sys.stdin.read())


if __name__ == "__main__":
    main()
