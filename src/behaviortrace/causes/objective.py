"""The weights that a step's rollouts had in its loss, and those they have once some are removed.

For fresh samples every supported loss is a weighted sum of the rollouts' plain objectives (minus
the mean token log-probability), and a rollout's weight is its advantage times a factor that depends
on lengths alone. So a step can be trained again from the log, without sampling anything, and
without any rollout that is taken out of it.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from trl.trainer.utils import nanstd

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.intervention import How
from behaviortrace.recipe import Recipe, TrainSettings

_TOLERANCE = 1e-4  # of recomputed advantages and weights, absolute and relative
_LOSSES = ("grpo", "dapo", "dr_grpo")


def advantages(rewards: np.ndarray, settings: TrainSettings) -> np.ndarray:
    """(n,) advantages of a step's rewards as TRL takes them; NaN rewards have none: 0.

    Args:
        rewards: (n,), groups of ``settings.generations`` beside one another; NaN: no reward.
        settings: generations and ``scale_rewards``.
    """
    grouped = torch.tensor(rewards, dtype=torch.float32).view(-1, settings.generations)
    centred = grouped - torch.nanmean(grouped, dim=1, keepdim=True)
    if settings.scale_rewards == "group":
        centred = centred / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)
    elif settings.scale_rewards == "batch":
        centred = centred / (nanstd(grouped) + 1e-4)
    return torch.nan_to_num(centred, nan=0.0).view(-1).double().numpy()


def factors(rows: pl.DataFrame, settings: TrainSettings) -> np.ndarray:
    """(n,) what a rollout's advantage is multiplied by in the loss, removed ones counted as before.

    The number of rollouts and tokens that the loss divides by stays that of the whole step: the
    others then take steps of the size they took.

    Args:
        rows: one step's rollouts, with ``n_tokens``.
        settings: loss and longest completion.
    """
    tokens = rows["n_tokens"].to_numpy().astype(np.float64)
    if settings.loss == "grpo":
        return np.full(len(tokens), 1 / len(tokens))
    if settings.loss == "dapo":
        return tokens / tokens.sum()
    return tokens / (len(tokens) * settings.max_completion_length)


def weights(
    rows: pl.DataFrame, settings: TrainSettings, removed: np.ndarray, how: How
) -> np.ndarray:
    """(n,) weight of each rollout's plain objective in the step's loss.

    Args:
        rows: one step's rollouts in order of ``index``.
        settings: of the training.
        removed: (n,) bool.
        how: what removal does.
    """
    rewards = rows["reward"].cast(pl.Float64).fill_null(np.nan).to_numpy().copy()
    if how == "exclude":
        rewards[removed] = np.nan
    elif how == "unboosted":
        rewards[removed] = rows["base_reward"].cast(pl.Float64).to_numpy()[removed]
    found = advantages(rewards, settings)
    if how == "zero":
        found[removed] = 0.0
    return found * factors(rows, settings)


def check(rollouts: pl.DataFrame, recipe: Recipe) -> None:
    """Refuse a training whose steps are not what :func:`weights` says they are.

    Args:
        rollouts: all training rollouts.
        recipe: of the run.

    Raises:
        BehaviorTraceError: the setting that is not covered, or the step whose recorded advantages
            or weights differ from those computed here.
    """
    train = recipe.train
    if train.loss not in _LOSSES:
        raise BehaviorTraceError(
            f"train.loss {train.loss!r} cannot be replayed, since a rollout's weight in it depends "
            f"on more than its advantage and length; use --mode rerun ({', '.join(_LOSSES)} can)"
        )
    if train.iterations > 1:
        raise BehaviorTraceError(
            f"train.iterations {train.iterations} cannot be replayed: a rollout's later uses "
            "depend on the policy of its first; use --mode rerun"
        )
    if train.beta > 0:
        raise BehaviorTraceError(
            f"train.beta {train.beta:g} cannot be replayed: the KL term is no multiple of a "
            "rollout's objective; use --mode rerun"
        )
    for (step,), rows in rollouts.group_by("step", maintain_order=True):
        ordered = rows.sort("index")
        if ordered.height != train.rollouts_per_step:
            raise BehaviorTraceError(
                f"step {step} has {ordered.height} rollouts instead of {train.rollouts_per_step}; "
                "'behaviortrace verify' tells what is missing"
            )
        found = weights(ordered, train, np.zeros(ordered.height, dtype=bool), "zero")
        recorded = ordered["update_weight"].cast(pl.Float64).fill_null(np.nan).to_numpy()
        known = np.isfinite(recorded)
        if not np.allclose(found[known], recorded[known], _TOLERANCE, _TOLERANCE):
            worst = int(np.argmax(np.abs(found - recorded) * known))
            raise BehaviorTraceError(
                f"step {step}: rollout {ordered['rollout_id'][worst]} had the weight "
                f"{recorded[worst]:.6g} in the loss, not {found[worst]:.6g} as its group's rewards "
                "say, so its training cannot be replayed; use --mode rerun"
            )
