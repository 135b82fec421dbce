"""P3: a slice of the first coordinates misses the behaviour, a sketch of equal size does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from behaviortrace.draws.checkpoint import Loader, Policy, need_recipe, open_policy
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.clusters import by_prompt
from behaviortrace.evaluate.within_group import judge
from behaviortrace.pitfalls.demonstration import Demonstration, defined
from behaviortrace.plant import behaviors
from behaviortrace.recipe import Recipe
from behaviortrace.scores.embeddings import center
from behaviortrace.scores.tokens import cosine, leave_prompt_out
from behaviortrace.targets import registry
from behaviortrace.targets.registry import Context
from behaviortrace.targets.spans import behavior_mask

if TYPE_CHECKING:
    from behaviortrace.run import Run
    from behaviortrace.train.progress import Progress

TITLE = "P3: a slice of the first coordinates against a sketch of all of them"
LIMIT = 160
SHARE = 0.1
RULE = (
    "none of the behaviour's token ids has its embedding row in the slice, or the slice holds less "
    "than a tenth of the energy at the behaviour's tokens that the sketch holds"
)
TARGET = "minimal_pair"


def slice_misses(
    run: Run,
    *,
    size: int | None = None,
    draw: str | None = None,
    limit: int = LIMIT,
    loader: Loader | None = None,
    progress: Progress | None = None,
) -> Demonstration:
    """Replay a draw's completions into a slice and into a CountSketch of the same size.

    Both are then used alike: a minimal-pair target, the group-centred direction's within-group AUC,
    and the cosine of the behaviour's tokens with the cross-fitted in-context target. What differs
    is which coordinates they have seen.

    Args:
        run: a run with a draw.
        size: numbers kept a rollout, a power of two; as many as the run's sketch where None.
        draw: name of the draw; the first where None.
        limit: replay whole groups, at most so many completions, spread evenly over the draw.
        loader: how to load a checkpoint folder; by default as any model source is loaded.
        progress: called with the stage "replay".

    Returns:
        One row an embedding: share of the gradient's squared norm that it holds, over completions
        and at the behaviour's tokens alone; norm of the target; AUC; cosine. Facts: how many of the
        behaviour's token ids have their embedding row in the slice, and the rms difference of the
        completions' pairwise cosines.

    Raises:
        BehaviorTraceError: no recipe, draw or checkpoint, or a limit that holds no group.
    """
    from behaviortrace.capture.sketch import CountSketch
    from behaviortrace.capture.slices import SliceSink
    from behaviortrace.train.progress import Clock

    recipe, rows = need_recipe(run), _rows(run, draw, limit)
    policy = open_policy(run, int(rows["step"][0]), loader)
    spec = CountSketch(recipe.sketch.dim, recipe.sketch.seed, recipe.sketch.hash)
    size = spec.dim if size is None else size
    kinds: dict[str, CountSketch | SliceSink] = {
        "slice": SliceSink(size),
        "countsketch": dataclasses.replace(spec, dim=size),
    }
    clock = Clock(progress, "replay", len(kinds))
    found, whole = [], {}
    behavior = behaviors.build(recipe.behavior)
    ids = rows["completion_ids"].to_list()
    masks = [behavior_mask(policy.tokenizer, one, behavior) for one in ids]
    for done, (name, kind) in enumerate(kinds.items(), start=1):
        seen = _Seen(dataclasses.replace(policy, sketch=kind), recipe, rows, masks)
        whole[name] = seen.whole
        found.append({"embedding": name, "numbers": size, **seen.measures()})
        clock.at(done)
    facts = {
        "draw": draw or run.draws()[0],
        "completions": rows.height,
        "size": size,
        **_rows_inside(policy, size, ids, masks),
        "cosine_rms": _cosine_rms(whole),
    }
    return Demonstration(
        "slice", TITLE, RULE, _shows(found, facts), _sentence(found, facts), _frame(found), facts
    )


def _shows(found: list[dict[str, Any]], facts: dict[str, Any]) -> bool | None:
    held = {row["embedding"]: row["energy_tokens"] for row in found}
    if None in held.values():
        return None
    return facts["token_ids_inside"] == 0 or held["slice"] < SHARE * held["countsketch"]


class _Seen:
    """What one embedding holds of the completions, the behaviour's tokens and the target."""

    def __init__(
        self, policy: Policy, recipe: Recipe, rows: pl.DataFrame, masks: list[list[bool]]
    ) -> None:
        from behaviortrace.plant.prompts import build_prompts

        self._rows, self._recipe = rows, recipe
        pairs = list(
            zip(rows["prompt_ids"].to_list(), rows["completion_ids"].to_list(), strict=True)
        )
        replay = policy.gradients(pairs)
        self.whole, self._norms, self._fluency = replay.plain, replay.norms, replay.fluency
        self._shown = np.flatnonzero([any(mask) for mask in masks])
        self._tokens = None
        if len(self._shown):
            chosen = self._shown.tolist()
            self._tokens = policy.gradients([pairs[i] for i in chosen], [masks[i] for i in chosen])
        behavior = behaviors.build(recipe.behavior)
        context = Context(policy, recipe, build_prompts(recipe), behavior)
        self._target = registry.get(TARGET)(context).vector

    def measures(self) -> dict[str, Any]:
        """The numbers of its row."""
        found: dict[str, Any] = {
            "energy": _energy(self.whole, self._norms),
            "energy_tokens": None,
            "target_norm": float(np.linalg.norm(self._target)),
            "cosine_in_context": None,
        }
        if self._tokens is not None:
            plain = self._tokens.plain
            prompts = self._rows["prompt"].to_numpy()[self._shown]
            fitted = cosine(plain, leave_prompt_out(prompts, plain))
            found["energy_tokens"] = _energy(plain, self._tokens.norms)
            if np.isfinite(fitted).any():
                found["cosine_in_context"] = float(np.nanmean(fitted))
        return found | self._auc()

    def _auc(self) -> dict[str, Any]:
        """Within-group AUC of the group-centred direction, raw and fluency-residualised."""
        group = self._rows["group"].to_numpy()
        centered = self.whole.copy()
        center(group, centered)
        score = cosine(centered, self._target)
        judged = np.isfinite(score)
        settings = self._recipe.evaluate
        report = judge(
            self._rows["behavior"].fill_null(False).to_numpy().astype(bool)[judged],
            group[judged],
            {"direction": score[judged]},
            self._fluency[judged],
            delta=settings.matched,
            resamples=settings.resamples,
            seed=settings.seed,
            cluster=by_prompt(self._rows)[judged],
        )
        found: dict[str, Any] = {}
        for variant, intervals in (("raw", report.raw), ("residualized", report.residualized)):
            interval = (intervals or {})["direction"].by(settings.interval)
            for end, value in (("auc", interval.point), ("lo", interval.lo), ("hi", interval.hi)):
                found[f"{variant}_{end}"] = defined(value)
        return found


def _rows(run: Run, draw: str | None, limit: int) -> pl.DataFrame:
    """Whole groups of a draw, spread evenly, at most ``limit`` completions."""
    known = run.draws()
    if not known:
        raise BehaviorTraceError(
            f"{run.path} has no draw to replay; make one with 'behaviortrace draw {run.path}'"
        )
    rollouts = run.rollouts(draw or known[0])
    groups = rollouts["group"].unique().sort().to_numpy()
    size = rollouts.height / len(groups)
    count = min(len(groups), int(limit // size))
    if count < 1:
        raise BehaviorTraceError(f"limit {limit} holds no group of {size:.0f}; raise it")
    chosen = groups[np.arange(count) * len(groups) // count]
    return rollouts.filter(pl.col("group").is_in(chosen.tolist()))


def _energy(sketches: np.ndarray, norms: np.ndarray) -> float | None:
    """Mean share of rows' squared gradient norm; about 1 for an unbiased sketch."""
    held = np.sum(np.asarray(sketches, dtype=np.float64) ** 2, axis=1)
    known = norms > 0
    return float(np.mean(held[known] / norms[known] ** 2)) if known.any() else None


def _rows_inside(
    policy: Policy, size: int, ids: list[list[int]], masks: list[list[bool]]
) -> dict[str, Any]:
    """Which of the behaviour's token ids have their whole embedding row in the slice."""
    from behaviortrace.capture.layout import Layout

    table = policy.model.get_input_embeddings().weight
    slot = Layout(policy.model).slot(table)
    rows = zip(ids, masks, strict=True)
    used = {token for one, mask in rows for token in np.asarray(one)[mask].tolist()}
    if slot is None:
        return {"token_ids": len(used), "token_ids_inside": 0, "rows_inside": 0}
    inside = max(0, min(size - slot.index, slot.size)) // slot.shape[1]
    return {
        "token_ids": len(used),
        "token_ids_inside": sum(token < inside for token in used),
        "rows_inside": inside,
        "rows_of_table": slot.shape[0],
    }


def _cosine_rms(whole: Mapping[str, np.ndarray]) -> float | None:
    """Rms difference of the rows' pairwise cosines between the two embeddings."""
    cosines = []
    for sketches in whole.values():
        rows = np.asarray(sketches, dtype=np.float64)
        size = np.linalg.norm(rows, axis=1, keepdims=True)
        unit = np.divide(rows, size, out=np.full_like(rows, np.nan), where=size > 0)
        cosines.append((unit @ unit.T)[np.triu_indices(len(unit), 1)])
    gap = cosines[0] - cosines[1]
    gap = gap[np.isfinite(gap)]
    return float(np.sqrt(np.mean(gap**2))) if len(gap) else None


def _sentence(found: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    held = {row["embedding"]: row["energy_tokens"] for row in found}
    rows = f"{facts['rows_inside']} whole rows of the embedding table"
    told = (
        f"The first {facts['size']:,} coordinates are {rows}; {facts['token_ids_inside']} of the "
        f"{facts['token_ids']} token ids that make the behaviour are among them"
    )
    if held["slice"] is None:
        return f"{told}. No replayed completion shows the behaviour."
    shares = (
        f"at the behaviour's tokens the slice holds {held['slice']:.2%} of the squared gradient "
        f"norm and the CountSketch of equal size {held['countsketch']:.2%}"
    )
    verdict = (
        "every quantity computed on the slice is void"
        if facts["token_ids_inside"] == 0
        else "all that the slice sees of the behaviour is in those rows"
    )
    return f"{told}: {shares}; {verdict}."


def _frame(found: list[dict[str, Any]]) -> pl.DataFrame:
    numbers = ["energy", "energy_tokens", "target_norm", "cosine_in_context"]
    numbers += [f"{v}_{e}" for v in ("raw", "residualized") for e in ("auc", "lo", "hi")]
    schema = {"embedding": pl.String, "numbers": pl.Int64, **dict.fromkeys(numbers, pl.Float64)}
    return pl.DataFrame(found, schema=schema)
