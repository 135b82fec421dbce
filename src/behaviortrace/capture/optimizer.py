"""What a step's optimizer knew: a diagonal summary of Adam's second moments.

Adam divides each coordinate of a step by the root of its second moment. The full moments are in the
checkpoints; what changes between two checkpoints is followed here, parameter by parameter, so that
a score may weigh gradients as the optimizer did.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import torch

from behaviortrace.capture.layout import Layout

MOMENT_SCHEMA: dict[str, Any] = {
    "step": pl.Int32,
    "parameter": pl.String,  # as in named_parameters()
    "coordinates": pl.Int64,
    "updates": pl.Int64,  # optimizer steps in the moments
    "second_moment": pl.Float64,  # mean of exp_avg_sq over the coordinates, after the step
    "beta2": pl.Float64,
    "epsilon": pl.Float64,
}
"""One row a trainable parameter and step; Adam divides the moment by 1 - beta2 ** updates."""


def second_moments(optimizer: Any, layout: Layout, step: int) -> pl.DataFrame | None:
    """Mean second moment of each parameter; None for an optimizer that keeps none.

    Args:
        optimizer: a torch optimizer, possibly wrapped by accelerate.
        layout: of the model's trainable parameters.
        step: the step that was just taken.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    groups = {id(p): group for group in inner.param_groups for p in group["params"]}
    known, means = [], []
    for slot, parameter in zip(layout.slots, layout.parameters, strict=True):
        state, group = inner.state.get(parameter, {}), groups.get(id(parameter), {})
        moment = state.get("exp_avg_sq")
        if isinstance(moment, torch.Tensor) and moment.shape == parameter.shape:
            means.append(moment.mean(dtype=torch.float32))
            beta2 = group.get("betas", (None, None))[1]
            known.append((slot, int(state.get("step", 0)), beta2, group.get("eps")))
    if not known:
        return None
    columns = {
        "step": [step] * len(known),
        "parameter": [slot.name for slot, *_ in known],
        "coordinates": [slot.size for slot, *_ in known],
        "updates": [updates for _, updates, *_ in known],
        "second_moment": torch.stack(means).tolist(),  # one transfer from the device
        "beta2": [beta2 for *_, beta2, _ in known],
        "epsilon": [epsilon for *_, epsilon in known],
    }
    return pl.DataFrame(columns, schema=MOMENT_SCHEMA)
