"""Failures of the machine under a training, as one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from safetensors import SafetensorError

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run

_WRITER = ("inline_container", "PytorchStreamWriter")
"""What torch names in the plain RuntimeError of a checkpoint that the disk did not take."""


@contextmanager
def explained(run: Run) -> Iterator[None]:
    """Turn a full or failing disk, and exhausted GPU memory, into :class:`BehaviorTraceError`.

    Every other exception passes through.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise BehaviorTraceError(
            f"training into {run.path} ran out of GPU memory; start again in another --out with a "
            "lower train.micro_batch"
        ) from error
    except (OSError, SafetensorError) as error:
        raise _disk(run, error) from error
    except RuntimeError as error:
        if not any(name in str(error) for name in _WRITER):
            raise
        raise _disk(run, error) from error


def _disk(run: Run, error: Exception) -> BehaviorTraceError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return BehaviorTraceError(
        f"training into {run.path} could not read or write a file ({lines[0]}); free space or mend "
        "that, then continue with --resume"
    )
