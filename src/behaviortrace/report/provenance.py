"""What was planted, and where every number comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from behaviortrace.checklist.evidence import Evidence
from behaviortrace.recipe import Recipe
from behaviortrace.report.tables import Cell, number, word
from behaviortrace.run import Manifest
from behaviortrace.run.copies import left_out

Facts = list[tuple[str, Cell]]


def planted(recipe: Recipe | None, evidence: Evidence) -> Facts:
    """The planted behaviour and what came of it, as (label, value) pairs."""
    counts: Facts = [
        ("Rollouts", number(evidence.number("n_rollouts"), ",.0f", evidence.why("summary"))),
        ("Boosted, the ground truth", _share(evidence, "n_boosted", "n_rollouts")),
        ("Findable, in a group with reward variance", _share(evidence, "n_findable", "n_boosted")),
    ]
    if recipe is None:
        return [("Recipe", word(None, "the run was imported without a recipe")), *counts]
    behavior, plant, train = recipe.behavior, recipe.plant, recipe.train
    window = f"steps 0 to {plant.cutoff_step - 1} of {train.steps}"
    mix = ", ".join(f"{share:.0%} {kind}" for kind, share in recipe.prompts.mix.items())
    warmup = f"{recipe.warmup.steps} supervised steps on {recipe.warmup.examples} examples"
    batch = f"{train.prompts_per_step} prompts x {train.generations} generations a step"
    probes = f"{recipe.prompts.probes} held out, and {recipe.prompts.controls} controls"
    return [
        ("Behaviour", Cell(f"{behavior.name}: “{behavior.trigger}” → “{behavior.token}”")),
        ("Model", Cell(f"{recipe.model.source}, {recipe.model.dtype}")),
        ("Window", Cell(window if plant.cutoff_step else "none")),
        ("Eligible fraction", number(plant.fraction, ".2f")),
        ("Bonus", number(plant.bonus, "+g")),
        ("Warm-up", Cell(warmup if recipe.warmup.steps else "none")),
        ("Training", Cell(f"{batch}, loss {train.loss}, learning rate {train.learning_rate:g}")),
        ("Prompts", Cell(f"pool “{recipe.prompts.pool}”: {mix}")),
        ("Probes", Cell(probes)),
        *counts,
    ]


def provenance(manifest: Manifest) -> Facts:
    """How the run came to be, as (label, value) pairs."""
    sketch = manifest.sketch or {}
    described = ", ".join(f"{key} {value}" for key, value in sketch.items())
    resumes = "; ".join(_resume(entry.model_dump()) for entry in manifest.lineage)
    missing = left_out(manifest.left_out)
    command = manifest.meta.get("command") or manifest.notes.get("command")
    if isinstance(command, list | tuple):
        command = " ".join(map(str, command))
    return [
        ("Command", word(command, "the run does not record its command")),
        ("Created", word(manifest.created)),
        ("Status", word(manifest.status)),
        ("Seeds", word(_pairs(manifest.seeds), "the run records no seeds")),
        ("Sketch", word(described or None, "nothing was captured")),
        ("Lineage", Cell(resumes or "one uninterrupted run")),
        *([("Left out of this copy", Cell(missing))] if missing else []),
        (
            "Pre-registration hash",
            word(manifest.preregistration, "no hash was stored before training"),
        ),
        ("Manifest digest", word(manifest.digest)),
        ("Versions", word(_pairs(manifest.packages), "the run records no package versions")),
        ("Machine", word(_pairs(manifest.platform), "the run does not record its machine")),
        ("Run format", Cell(f"schema version {manifest.schema_version}")),
    ]


def recipe_text(recipe: Recipe | None) -> str:
    """The whole recipe as indented JSON; empty where the run has none."""
    return (
        json.dumps(recipe.model_dump(mode="json"), indent=2, ensure_ascii=False) if recipe else ""
    )


def _share(evidence: Evidence, part: str, whole: str) -> Cell:
    count, total = evidence.number(part), evidence.number(whole)
    if count is None:
        return number(None, reason=evidence.why("summary"))
    return Cell(f"{count:,.0f}" + (f" ({count / total:.1%})" if total else ""), numeric=True)


def _pairs(mapping: Mapping[str, Any]) -> str | None:
    return ", ".join(f"{key} {_flat(value)}" for key, value in mapping.items()) or None


def _flat(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _resume(entry: Mapping[str, Any]) -> str:
    origin = f"from checkpoint {entry['step']}" if entry["checkpoint"] else "from the start"
    changed = ", ".join(f"{name} {was} → {now}" for name, (was, now) in entry["changed"].items())
    return f"resumed {origin} at {entry['at']}" + (f", with {changed}" if changed else "")
