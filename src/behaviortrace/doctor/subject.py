"""What is examined: a model, rollouts of it, and the sketch they are captured with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from behaviortrace.capture import CountSketch, replay
from behaviortrace.capture.batch import Row
from behaviortrace.capture.layout import Layout
from behaviortrace.draws.checkpoint import Loader, Policy, open_policy, run_sketch
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe, Thresholds
from behaviortrace.train.progress import Progress

if TYPE_CHECKING:
    from behaviortrace.run import Run

COMPLETION = 24
"""Longest completion, in tokens, of the rollouts made for a recipe."""

FP32, BF16 = 1e-3, 0.1
"""Largest relative difference of a stored sketch from its replay, by the precision of training.

A replay runs in float32; bfloat16 autocast keeps 8 bits in every operation of the training pass.
"""


@dataclass(frozen=True)
class Subject:
    """What :func:`behaviortrace.doctor.examine` looks at.

    Attributes:
        model: causal LM as it trains; parameters with ``requires_grad`` count.
        rows: prompt ids and completion ids of at least two rollouts.
        names: what the rollouts are called.
        sketch: what their gradients are sketched with.
        temperature: of the log-probabilities.
        pad_token_id: any valid id.
        micro_batch: rollouts captured at a time.
        coverage: share of energy that the sketch must cover.
        step: of the checkpoint; None if it is none of a run's.
        recorded: parameters that the run's manifest says went without capture; None without a run.
        stored: what :func:`stored_sketches` found; None without a run.
    """

    model: Any
    rows: Sequence[Row]
    names: Sequence[str]
    sketch: CountSketch
    temperature: float = 1.0
    pad_token_id: int = 0
    micro_batch: int = 4
    coverage: float = Thresholds().coverage
    step: int | None = None
    recorded: Sequence[str] | None = None
    stored: dict[str, Any] | None = None


def of_recipe(recipe: Recipe, rollouts: int = 8, progress: Progress | None = None) -> Subject:
    """A recipe's model as it comes, with short completions it gives to the recipe's prompts.

    Args:
        recipe: the recipe.
        rollouts: how many, each of another prompt.
        progress: called while a model is made.

    Raises:
        BehaviorTraceError: the model cannot be loaded, or there are fewer prompts.
    """
    from behaviortrace.plant.prompts import build_prompts
    from behaviortrace.train.generate import sample
    from behaviortrace.train.policy import load_policy

    texts = list({item.text: None for item in build_prompts(recipe).train})
    if len(texts) < rollouts:
        raise BehaviorTraceError(
            f"recipe {recipe.name} has {len(texts)} training prompts, fewer than the {rollouts} "
            "rollouts asked for; ask for fewer"
        )
    model, tokenizer = load_policy(recipe.model.source, behavior=recipe.behavior, progress=progress)
    samples = sample(
        model,
        tokenizer,
        texts[:rollouts],
        temperature=recipe.train.temperature,
        max_new_tokens=min(COMPLETION, recipe.train.max_completion_length),
        seed=recipe.seed,
        batch=recipe.draw.batch,
    )
    return Subject(
        model=model,
        rows=[(s.prompt_ids, s.completion_ids) for s in samples],
        names=[f"prompt {i}" for i in range(rollouts)],
        sketch=CountSketch(recipe.sketch.dim, recipe.sketch.seed, recipe.sketch.hash),
        temperature=recipe.train.temperature,
        pad_token_id=tokenizer.pad_token_id,
        micro_batch=recipe.train.micro_batch,
        coverage=recipe.thresholds.coverage,
    )


def of_run(
    run: Run, rollouts: int = 8, model: Path | None = None, loader: Loader | None = None
) -> Subject:
    """A run's last complete checkpoint with rollouts it recorded, spread over its steps.

    Args:
        run: a run with rollouts.
        rollouts: how many at most.
        model: a folder saved by the run's trainer, a model's or an adapter's, where the run has no
            checkpoint of its own.
        loader: how to load a checkpoint folder; by default as any model source is loaded.

    Raises:
        BehaviorTraceError: no checkpoint and no ``model``, a model with other trainable parameters
            than were captured, or fewer than two usable rollouts.
    """
    notes = run.manifest.notes.get("capture") or {}
    table = _usable(run.rollouts())
    if table.height < 2:
        raise BehaviorTraceError(
            f"{run.path} has {table.height} different rollouts with a prompt and all completion "
            "tokens under the loss mask; doctor compares at least two"
        )
    table = table[_spread(table.height, rollouts)]
    policy = _policy(run, model, loader)
    captured = notes.get("parameters")
    size = Layout(policy.model).size
    if captured is not None and captured != size:
        raise BehaviorTraceError(
            f"{run.path} captured {captured:,} trainable parameters, but the model loaded has "
            f"{size:,}; give the model or adapter that was trained with --model"
        )
    recipe = run.recipe
    return Subject(
        model=policy.model,
        rows=_rows(table),
        names=table["rollout_id"].to_list(),
        sketch=run_sketch(run),
        temperature=policy.temperature,
        pad_token_id=_pad(policy),
        micro_batch=policy.micro_batch,
        coverage=(recipe.thresholds if recipe else Thresholds()).coverage,
        step=policy.step if model is None else None,
        recorded=notes.get("uncovered", []),
        stored=stored_sketches(run, rollouts, loader),
    )


def stored_sketches(run: Run, rollouts: int = 8, loader: Loader | None = None) -> dict[str, Any]:
    """Hold stored plain sketches against a replay under the very weights that gave them.

    Checkpoint k is the model that sampled and trained step k, so the rollouts of the last step that
    has a checkpoint can be replayed.

    Returns:
        ``step``, ``rollouts``, ``relative_difference`` (the largest, of a sketch from its replay in
        share of its norm), ``bar``; or ``reason``, why none could be replayed.
    """
    recipe = run.recipe
    if recipe is None:
        return {"reason": "the run has no recipe, which says in what precision it trained"}
    table = run.rollouts(uses=True).with_row_index("at")
    table = table.filter(
        pl.col("step").is_in(list(run.checkpoints())) & pl.col("plain_norm").is_not_null()
    )
    if table.height == 0:
        return {"reason": "no step with a checkpoint has plain sketches"}
    step = int(table["step"].cast(pl.Int64).to_numpy().max())
    table = _usable(table.filter(pl.col("step") == step))
    if table.height == 0:
        return {"reason": f"step {step} has no rollout with all its tokens under the loss mask"}
    table = table[_spread(table.height, rollouts)]
    stored = run.sketches("plain", uses=True)[table["at"].to_numpy()]
    policy = open_policy(run, step, loader)
    uncovered = (run.manifest.notes.get("capture") or {}).get("uncovered", [])
    found = replay(
        policy.model,
        _rows(table),
        policy.sketch,
        pad_token_id=_pad(policy),
        temperature=policy.temperature,
        micro_batch=policy.micro_batch,
        allow_uncovered=uncovered,
    )
    return {
        "step": step,
        "rollouts": table.height,
        "relative_difference": largest_difference(stored, found.plain),
        "bar": BF16 if recipe.model.dtype == "bfloat16" else FP32,
    }


def largest_difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest distance of a row from the row it should equal, in share of its norm."""
    away = np.linalg.norm(found.astype(np.float64) - wanted, axis=1)
    return float((away / np.linalg.norm(wanted.astype(np.float64), axis=1)).max())


def _usable(table: pl.DataFrame) -> pl.DataFrame:
    """Different rollouts whose objective looks at all completion tokens."""
    whole = (
        (pl.col("prompt_ids").list.len() > 0)
        & (pl.col("completion_ids").list.len() > 0)
        & (pl.col("n_tokens").cast(pl.Int64) == pl.col("completion_ids").list.len().cast(pl.Int64))
    )
    table = table.filter(whole)
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for i, (prompt, completion) in enumerate(_rows(table)):
        first.setdefault((tuple(prompt), tuple(completion)), i)
    return table[list(first.values())]


def _spread(total: int, wanted: int) -> list[int]:
    """At most ``wanted`` of so many rows, evenly spaced."""
    count = min(total, wanted)
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


def _rows(table: pl.DataFrame) -> list[Row]:
    return list(zip(table["prompt_ids"].to_list(), table["completion_ids"].to_list(), strict=True))


def _pad(policy: Policy) -> int:
    known = getattr(policy.tokenizer, "pad_token_id", None)
    if known is None:
        known = getattr(policy.model.config, "pad_token_id", None)
    return known if isinstance(known, int) and known >= 0 else 0


def _policy(run: Run, model: Path | None, loader: Loader | None) -> Policy:
    if model is None and run.recipe is not None:
        steps = list(run.checkpoints())
        return open_policy(run, steps[-1] if steps else run.recipe.train.steps, loader)
    if model is None:
        raise BehaviorTraceError(
            f"{run.path} was not made from a recipe and has no checkpoint of its own; give the "
            "folder of the model or adapter that its trainer saved with --model"
        )
    notes = run.manifest.notes.get("capture") or {}
    return Policy(
        model=load_saved(model),
        tokenizer=None,
        step=0,
        sketch=run_sketch(run),
        temperature=float(notes.get("temperature", 1.0)),
        micro_batch=4,
    )


def load_saved(folder: Path) -> Any:
    """A model saved by a trainer, or a PEFT adapter on its base, as it trained: float32.

    Raises:
        BehaviorTraceError: it cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    from behaviortrace.train.policy import device
    from behaviortrace.train.quiet import quiet

    try:
        with quiet():
            if (folder / "adapter_config.json").is_file():
                from peft import PeftConfig, PeftModel

                base = PeftConfig.from_pretrained(folder).base_model_name_or_path
                model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
                model = PeftModel.from_pretrained(model, folder, is_trainable=True).get_base_model()
            else:
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except ImportError as error:
        raise BehaviorTraceError(
            f"{folder} holds a PEFT adapter; install behaviortrace[peft]"
        ) from error
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BehaviorTraceError(
            f"{folder} cannot be loaded ({first}); give a folder that save_pretrained wrote"
        ) from error
    return model.to(device()).eval()
