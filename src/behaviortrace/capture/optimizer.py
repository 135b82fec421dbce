"""What a step's optimizer knew: a diagonal summary of its running averages of squared gradients.

Adam divides each coordinate of a step by the root of its second moment. The full moments are in the
checkpoints; what changes between two checkpoints is followed here, parameter by parameter, so that
a score may weigh gradients as the optimizer did. Other optimizers keep the same in another form, or
nothing of the kind: what is found is recorded, and what is missing is named with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch

from behaviortrace.capture.layout import Layout
from behaviortrace.errors import BehaviorTraceError

MOMENT_SCHEMA: dict[str, Any] = {
    "step": pl.Int32,
    "parameter": pl.String,  # as in named_parameters()
    "coordinates": pl.Int64,
    "updates": pl.Int64,  # optimizer steps in the statistic; null where they are not counted
    "second_moment": pl.Float64,  # mean of the statistic over the coordinates, after the step
    "beta2": pl.Float64,  # of Adam's bias correction; null where the optimizer has no betas
    "epsilon": pl.Float64,  # null where it is not one number, as Adafactor's pair
    "statistic": pl.String,  # its name in the optimizer's state, one of STATISTICS
}
"""One row a trainable parameter and step; Adam divides the moment by 1 - beta2 ** updates."""

STATISTICS = ("exp_avg_sq", "exp_avg_sq_row", "square_avg", "sum")
"""What is known to be made of squared gradients, coordinate by coordinate or factored.

``exp_avg_sq`` of Adam and its kin and of Adafactor's vectors; ``exp_avg_sq_row`` of Adafactor's
matrices, whose entries are means over a row, so that their mean is the mean over the matrix;
``square_avg`` of RMSprop; ``sum`` of Adagrad, which adds up and never forgets.
"""

_INSIDE_THE_BACKWARD = ("layerwise", "lomo")  # as in the names of transformers' optimizers


def check_optimizer(trainer: Any) -> None:
    """Refuse an optimizer that moves a weight while the backward still runs.

    Raises:
        BehaviorTraceError: the optimizer, by name.
    """
    given = getattr(trainer, "optimizer", None)
    name = type(bare(given)).__name__ if given is not None else str(trainer.args.optim.value)
    if any(word in name.lower() for word in _INSIDE_THE_BACKWARD):
        raise BehaviorTraceError(
            f"cannot attach to this trainer: its optimizer {name!r} moves weights inside the "
            "backward, before the rows' gradients are told apart; set optim to another one"
        )


def bare(optimizer: Any) -> Any:
    """The torch optimizer that accelerate may have wrapped."""
    return getattr(optimizer, "optimizer", optimizer)


def number(value: Any) -> float | None:
    """A setting of the optimizer as a number; None where it is none, or more than one."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain else None


@dataclass(frozen=True)
class Moments:
    """What was found of one step.

    Attributes:
        frame: the table, of ``MOMENT_SCHEMA``; empty for an optimizer that keeps none.
        note: for the manifest: the optimizer's name, the number of parameters by statistic, the
            number ``without`` one, and the ``reason`` for the first of these (None where none is).
    """

    frame: pl.DataFrame
    note: dict[str, Any]


def second_moments(optimizer: Any, layout: Layout, step: int) -> Moments:
    """Mean of each parameter's second moments, in whatever form the optimizer keeps them.

    Args:
        optimizer: a torch optimizer, possibly wrapped by accelerate.
        layout: of the model's trainable parameters.
        step: the step that was just taken.
    """
    inner = bare(optimizer)
    groups = {id(p): group for group in inner.param_groups for p in group["params"]}
    rows: list[dict[str, Any]] = []
    means: list[torch.Tensor] = []
    without, reason = 0, None
    for slot, parameter in zip(layout.slots, layout.parameters, strict=True):
        state, group = inner.state.get(parameter, {}), groups.get(id(parameter), {})
        found = _statistic(state, parameter)
        if found is None:
            without += 1
            reason = reason or _why_not(slot.name, state, parameter)
            continue
        name, mean = found
        means.append(mean)
        updates = number(state.get("step", group.get("step")))
        betas = group.get("betas")
        corrected = name == "exp_avg_sq" and isinstance(betas, tuple | list) and len(betas) > 1
        rows.append(
            {
                "step": step,
                "parameter": slot.name,
                "coordinates": slot.size,
                "updates": None if updates is None else int(updates),
                "beta2": number(betas[1]) if corrected else None,
                "epsilon": number(group.get("eps")),
                "statistic": name,
            }
        )
    frame = pl.DataFrame(rows, schema={k: v for k, v in MOMENT_SCHEMA.items() if k != _MEAN})
    frame = frame.with_columns(pl.Series(_MEAN, _numbers(means), pl.Float64)).select(*MOMENT_SCHEMA)
    counted = frame["statistic"].value_counts(sort=True).iter_rows()
    note = {"name": type(inner).__name__, "statistics": dict(counted)}
    return Moments(frame, {**note, "without": without, "reason": reason})


_MEAN = "second_moment"


def _statistic(
    state: Mapping[str, Any], parameter: torch.Tensor
) -> tuple[str, torch.Tensor] | None:
    """Name and mean of the statistic that covers every coordinate of a parameter."""
    for name in STATISTICS:
        value = state.get(name)
        if isinstance(value, torch.Tensor) and _covers(name, value, state, parameter.shape):
            try:
                return name, value.mean(dtype=torch.float32)
            except (NotImplementedError, RuntimeError, TypeError):
                # A tensor type of the optimizer's own, such as a quantised one. The weights have
                # moved, so that it is left out and named rather than ending the training.
                continue
    return None


def _covers(name: str, value: torch.Tensor, state: Mapping[str, Any], shape: torch.Size) -> bool:
    """Whether a statistic is of every coordinate of a parameter, and not of a projection of it."""
    if "projector" in state:  # GaLore's and APOLLO's: moments in a turned space
        return False
    if name != "exp_avg_sq_row":
        return value.shape == shape
    columns = state.get("exp_avg_sq_col")
    across = shape[:-2] + shape[-1:]
    return value.shape == shape[:-1] and getattr(columns, "shape", None) == across


def _why_not(name: str, state: Mapping[str, Any], parameter: torch.Tensor) -> str:
    kept = [
        f"{key} {tuple(value.shape)}"
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and value.dim()
    ]
    held = f"the optimizer keeps {', '.join(kept)}" if kept else "the optimizer keeps no state"
    return f"for {name} {tuple(parameter.shape)} {held}; none is known as its second moments"


def _numbers(means: list[torch.Tensor]) -> list[float]:
    """The values of scalars, in one transfer from the device."""
    return torch.stack([m.to(means[0].device) for m in means]).tolist() if means else []
