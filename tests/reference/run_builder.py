"""Small runs for the tests of the run directory, and a slow, obvious model of what they hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from behaviortrace import recipe as recipes
from behaviortrace.recipe import Recipe
from behaviortrace.records import Target
from behaviortrace.run import Run

DIM = 8
ROWS = 3


def small_recipe(steps: int = 6, every: int = 2) -> Recipe:
    """A recipe of few steps; nothing is trained with it."""
    return recipes.load(
        "tiny",
        {
            "train.steps": steps,
            "train.checkpoint_every": every,
            "plant.cutoff_step": steps // 2,
            "draw.checkpoint": 0,
        },
    )


def rollout_frame(step: int, rank: int = 0, rows: int = ROWS) -> pl.DataFrame:
    """Rows of one step that say where they come from."""
    return pl.DataFrame(
        {
            "rollout_id": [f"{step}-{rank}-{i}" for i in range(rows)],
            "step": [step] * rows,
            "completion": [f"completion {i} of step {step}, rank {rank}" for i in range(rows)],
            "update_weight": [float(i) for i in range(rows)],
        },
        schema_overrides={
            "rollout_id": pl.String,
            "step": pl.Int32,
            "completion": pl.String,
            "update_weight": pl.Float64,
        },
    )


def plain_sketches(step: int, rank: int = 0, rows: int = ROWS) -> np.ndarray:
    """(rows, DIM) float32, different for every step and rank."""
    rng = np.random.default_rng([step, rank])
    return rng.standard_normal((rows, DIM)).astype(np.float32)


def probe_frame(step: int) -> pl.DataFrame:
    """Two probe responses."""
    return pl.DataFrame({"step": [step, step], "kind": ["probe", "control"]})


def target(step: int = 0, name: str = "minimal_pair") -> Target:
    """A target with a vector and some meta."""
    return Target(name, "minimal_pair", step, np.arange(DIM, dtype=np.float32) + step, {"n": 3})


def write_checkpoint(run: Run, step: int) -> Path:
    """A checkpoint folder on the disk, not yet listed."""
    folder = run.path / "checkpoints" / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(bytes([step]) * 100)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def save_checkpoint(run: Run, step: int) -> None:
    """Probes first, the checkpoint listed last, as training does it."""
    folder = write_checkpoint(run, step)
    if not any(shard.step == step for shard in run.manifest.store("probes")):
        run.write_shard("probes", step, 0, probe_frame(step))
    run.add_checkpoint(step, folder)


def train(run: Run, steps: int, every: int) -> None:
    """Go on from where the run is, as a trainer would."""
    if 0 not in run.checkpoints():
        save_checkpoint(run, 0)
    for step in range(max(run.checkpoints()), steps):
        run.write_shard("training", step, 0, rollout_frame(step), {"plain": plain_sketches(step)})
        if (step + 1) % every == 0 or step + 1 == steps:
            save_checkpoint(run, step + 1)
    run.update(status="trained")


def finish(run: Run) -> None:
    """What the later stages leave behind."""
    run.write_shard("draws/a", 0, 0, rollout_frame(0), {"plain": plain_sketches(0)})
    run.save_target(target())
    run.save_table("scores/all", pl.DataFrame({"score": [1.0, 2.0]}))
    run.save_json("results/summary", {"n": 1})
    run.update(status="complete")


def whole_run(path: Path, steps: int = 6, every: int = 2) -> Run:
    """A finished run with one of everything."""
    run = Run.create(path, recipe=small_recipe(steps, every))
    train(run, steps, every)
    finish(run)
    return run


def contents(run: Run) -> dict[str, str]:
    """Listed file -> checksum, for comparing two runs."""
    return {entry.file: entry.sha256 for entry in run.manifest.files()}


def edit_manifest(path: Path, change: Any, *, seal: bool = True) -> None:
    """Change a manifest as a user or an attacker would, its digest made good again if ``seal``."""
    body = json.loads((path / "manifest.json").read_text())
    change(body)
    if seal:
        body["digest"] = None
        text = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
        body["digest"] = hashlib.sha256(text.encode()).hexdigest()
    text = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
    (path / "manifest.json").write_text(text, encoding="utf-8")
