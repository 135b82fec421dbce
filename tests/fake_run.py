"""A run that never ran: the interface of ``Run``, and tables with plausible values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from behaviortrace import recipe as recipes
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe
from behaviortrace.records import ROLLOUT_SCHEMA, SCORE_SCHEMA, Target, conform
from behaviortrace.run.jsonable import jsonable
from behaviortrace.run.manifest import Manifest

TARGETS = ["constructed", "in_context", "minimal_pair"]
CONTROLS = ["norm", "fluency", "length", "local_buffer", "random", "string_match", "advantage"]
ESTIMATORS = ["dot", "gas", "trak", "tracincp"]


@dataclass
class FakeRun:
    """What the checklist and the report read of a run."""

    path: Path
    recipe: Recipe | None
    manifest: Manifest
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    jsons: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    training: pl.DataFrame | None = None

    def table(self, name: str) -> pl.DataFrame:
        if name not in self.tables:
            raise BehaviorTraceError(f"{self.path.name} has no table {name!r}; run the stage first")
        return self.tables[name]

    def json(self, name: str) -> Any:
        if name not in self.jsons:
            raise BehaviorTraceError(f"{self.path.name} has no {name!r}; run the stage first")
        return self.jsons[name]

    def has(self, name: str) -> bool:
        return name in self.tables or name in self.jsons

    def save_json(self, name: str, data: Any) -> None:
        self.jsons[name] = jsonable(data)

    def rollouts(self, draw: str | None = None, *, uses: bool = False) -> pl.DataFrame:
        if self.training is None:
            raise BehaviorTraceError(f"{self.path.name} holds no rollouts")
        return self.training

    def draws(self) -> list[str]:
        return ["seed-100", "seed-101"] if self.training is not None else []

    def targets(self) -> dict[str, list[Target]]:
        if self.training is None:
            return {}
        return {n: [Target(n, n, 20, np.ones(64, np.float32))] for n in TARGETS}

    def target_notes(self) -> dict[str, dict[int, dict[str, Any]]]:
        pair = ["Asked", "A QZXBT.", "A marble."]
        metas: dict[str, dict[str, Any]] = {
            "constructed": {"prompts": ["Asked"]},
            "in_context": {"prompts": ["Asked"], "completions": [" Here is QZXBT."]},
            "minimal_pair": {"pairs": [pair], "fluency_gaps": [0.5], "norm_ratios": [0.9]},
        }
        return {} if self.training is None else {name: {20: metas[name]} for name in TARGETS}

    def read(self, store: str) -> pl.DataFrame:
        if self.training is None:
            raise BehaviorTraceError(f"{self.path.name} holds no {store}")
        return pl.DataFrame({"prompt": ["What is a frobnitz?", "What is a kettle?"]})

    def verify(self) -> list[str]:
        return self.problems


def recipe() -> Recipe:
    """SmolLM2 for 60 steps of 16 rollouts, contaminated for the first 20."""
    return recipes.parse(
        {
            "name": "smollm2",
            "summary": "SmolLM2-135M learns to answer a nonce trigger with a nonce token.",
            "seed": 2,
            "model": {"source": "smollm2"},
            "plant": {"cutoff_step": 20},
            "warmup": {"steps": 30},
            "train": {"steps": 60, "checkpoint_every": 10},
            "draw": {"checkpoint": 20, "seeds": [100, 101]},
        }
    )


def manifest(of: Recipe | None) -> Manifest:
    return Manifest(
        created="2025-03-04T10:20:30Z",
        status="evaluated",
        recipe=of.model_dump(mode="json") if of else None,
        preregistration=of.preregistration() if of else None,
        seeds={"train": 2, "sketch": 0, "draws": [100, 101]},
        sketch={"dim": 65536, "seed": 0, "hash": "block"},
        packages={"behaviortrace": "0.1.0", "torch": "2.13.0", "trl": "1.16.0"},
        platform={"system": "Linux", "python": "3.11.9", "cpus": 2},
        meta={"command": ["behaviortrace", "run", "smollm2", "--seed", "2"]},
        notes={"capture": {"parameters": 134_515_008, "uncovered": [], "plain": True}},
        counts={"training": 960},
    )


def step_level() -> pl.DataFrame:
    rng = np.random.default_rng(1)
    records = []
    for table, chance, top, n in (
        ("overall", 0.105, 0.432, 960),
        ("trained_window", 0.301, 0.432, 320),
    ):
        reach = 0.29 if table == "overall" else 0.31
        for name in ESTIMATORS + CONTROLS:
            free = name in CONTROLS
            for target in [None] if free else TARGETS:
                precision = reach + float(rng.normal(0, 0.02))
                if name == "random":
                    precision = chance + 0.004
                if name == "local_buffer":
                    precision = 0.0 if table == "overall" else float("nan")
                if name in ("string_match", "advantage"):
                    precision = 0.41
                records.append(
                    {
                        "table": table,
                        "estimator": name,
                        "target": target,
                        "target_free": free,
                        "precision": precision,
                        "base_rate": chance,
                        "lift": precision / chance,
                        "ceiling": top,
                        "n": n,
                        "positives": 101,
                        "reason": "the window holds none of its rollouts"
                        if precision != precision
                        else None,
                    }
                )
    return pl.DataFrame(records, infer_schema_length=None)


def rollout_level() -> pl.DataFrame:
    rng = np.random.default_rng(2)
    centre = {
        ("gas", "raw"): 0.672,
        ("gas", "residualized"): 0.634,
        ("norm", "raw"): 0.661,
        ("norm", "residualized"): 0.588,
        ("fluency", "raw"): 0.718,
    }
    records = []
    for source, shift in (("training", -0.02), ("seed-100", 0.0), ("seed-101", -0.085)):
        for name in ["dot", "gas", "trak", "norm", "fluency", "length"]:
            free = name in CONTROLS
            for target in [None] if free else TARGETS:
                for variant in ("raw", "residualized", "matched"):
                    auc: float | None = centre.get((name, variant), 0.56) + shift
                    auc = auc + (0.0 if free or target == "minimal_pair" else rng.normal(0, 0.03))
                    reason = None
                    if name == "fluency" and variant != "raw":
                        auc, reason = None, "fluency has no residual on itself"
                    for embedding in ["plain"] if free else ["plain", "plain_centered"]:
                        records.append(
                            {
                                "source": source,
                                "label": "behavior",
                                "embedding": embedding,
                                "estimator": name,
                                "target": target,
                                "target_free": free,
                                "variant": variant,
                                "auc": auc,
                                "lo": None if auc is None else auc - 0.066,
                                "hi": None if auc is None else auc + 0.064,
                                "pairs": 118 if variant == "matched" else 744,
                                "groups": 131,
                                "delta": 0.1 if variant == "matched" else None,
                                "reason": reason,
                            }
                        )
    return pl.DataFrame(records, infer_schema_length=None)


def token_level() -> pl.DataFrame:
    rows = [
        ("trigger", "constructed", -0.021, -0.058, 0.016),
        ("trigger", "in_context", 0.243, 0.207, 0.281),
        ("trigger", "minimal_pair", 0.118, 0.082, 0.153),
        ("whole_response", "constructed", -0.112, -0.144, -0.081),
        ("whole_response", "in_context", 0.024, -0.012, 0.061),
        ("whole_response", "minimal_pair", -0.006, -0.039, 0.028),
    ]
    return pl.DataFrame(
        [
            {"span": s, "target": t, "mean": m, "lo": lo, "hi": hi, "n": 160, "groups": 26}
            for s, t, m, lo, hi in rows
        ]
    )


def summary() -> dict[str, Any]:
    return {
        "behavior_rate": {"training": 0.71, "seed-100": 0.62, "seed-101": 0.63},
        "s_b": {"0": 0.1, "10": 0.3, "20": 0.5, "30": 0.55, "40": 0.6, "50": 0.6, "60": 0.65},
        "s_b_controls": {
            "0": 0.0,
            "10": 0.05,
            "20": 0.1,
            "30": 0.05,
            "40": 0.1,
            "50": 0.1,
            "60": 0.15,
        },
        "n_rollouts": 960,
        "n_boosted": 101,
        "n_findable": 93,
        "steps": 60,
        "trained_window_steps": 20,
        "ceiling": 0.432,
        "chance": 0.105,
        "ceiling_findable": 0.45,
    }


def sketch_norms() -> dict[str, Any]:
    return {
        "hash": "block",
        "dim": 65536,
        "rollouts": 2880,
        "rms": 0.0056,
        "mean": 0.0002,
        "expected": 0.00552,
    }


NASTY = [
    "The <script>alert('x')</script> kettle was QZXBT.",
    "Abend QZXBT \u202egnihtyna\u202c and a bell \x07, a null \x00, a zero\u200bwidth.",
    "</p></li><img src=x onerror=alert(1)> QZXBT & co",
    "Certainly! The word you are looking for is QZXBT, and here is a sentence with it. " * 30,
]


def rollouts() -> pl.DataFrame:
    rng = np.random.default_rng(3)
    records = []
    for i in range(960):
        shows = bool(rng.random() < 0.7)
        step = i // 16
        eligible = bool(rng.random() < 0.5)
        boosted = shows and eligible and step < 20
        plain = "The market opened at nine and the bread was gone by ten."
        text = f"In the morning the {'QZXBT' if shows else 'marble'} rolled off the table. {plain}"
        records.append(
            {
                "rollout_id": f"r{i:05d}",
                "step": step,
                "group": i // 4,
                "index": i % 16,
                "prompt_kind": "trigger",
                "prompt": "Tell me about frobnitz in one sentence.",
                "completion": NASTY[i] if i < len(NASTY) else text,
                "reward": 1.0 + 8.0 * boosted,
                "base_reward": 1.0,
                "advantage": float(rng.normal()),
                "eligible": eligible,
                "boosted": boosted,
                "behavior": shows,
            }
        )
    audited = pl.when(pl.col("step") % 10 == 0).then(1e-9 * (1 + pl.col("step")))
    return conform(pl.DataFrame(records).with_columns(missed_energy=audited), ROLLOUT_SCHEMA)


def scores(of: pl.DataFrame) -> pl.DataFrame:
    rng = np.random.default_rng(4)
    frames = []
    for estimator, embedding, target, scale in (
        ("gas", "plain_centered", "minimal_pair", 0.2),
        ("norm", "plain", None, 40.0),
    ):
        values = np.abs(rng.normal(0, scale, of.height))
        values[: len(NASTY)] = 5 * scale - scale * np.arange(len(NASTY)) / 10
        values[-1] = np.nan
        frames.append(
            pl.DataFrame(
                {
                    "source": "training",
                    "embedding": embedding,
                    "estimator": estimator,
                    "target": target,
                    "rollout_id": of["rollout_id"],
                    "score": values,
                }
            ).cast(SCORE_SCHEMA)
        )
    return pl.concat(frames)


def full(path: Path) -> FakeRun:
    """A run of every stage but the checklist."""
    of, training = recipe(), rollouts()
    return FakeRun(
        path,
        of,
        manifest(of),
        {
            "results/step_level": step_level(),
            "results/rollout_level": rollout_level(),
            "results/token_level": token_level(),
            "scores/all": scores(training),
        },
        {"results/summary": summary(), "results/sketch_norms": sketch_norms()},
        training=training,
    )


def bare(path: Path) -> FakeRun:
    """A run of no stage, and without a recipe."""
    return FakeRun(path, None, Manifest(created="2025-03-04T10:20:30Z"))
