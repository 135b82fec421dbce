"""The run directory: what every stage reads and writes, and nothing else.

::

    RUN/
      manifest.json    what the run is, and every file in it with its size and SHA-256
      rollouts/        Parquet shards, one a step and rank
      sketches/        safetensors shards, rows aligned with the rollouts
      probes/          Parquet shards of probe responses, one a checkpoint
      checkpoints/     ordinary Hugging Face checkpoints
      draws/NAME/      rollouts/ and sketches/ of a fresh draw
      targets/  scores/  results/

A file exists for readers only once the manifest lists it. Files are written aside, flushed, renamed
into place, and then listed, so that a process may be killed at any moment: what is left behind is
unlisted, :meth:`Run.verify` names it, and :meth:`Run.begin_resume` removes it.
"""

from behaviortrace.run.directory import Run
from behaviortrace.run.manifest import (
    CheckpointEntry,
    FileEntry,
    Manifest,
    ResumeEntry,
    ShardEntry,
    TableEntry,
    TargetEntry,
)

__all__ = [
    "CheckpointEntry",
    "FileEntry",
    "Manifest",
    "ResumeEntry",
    "Run",
    "ShardEntry",
    "TableEntry",
    "TargetEntry",
]
