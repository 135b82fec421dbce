"""A model on the line through its parameters: log-probabilities a step away, and how long a step.

The model is never written to; perturbed copies stand in for its parameters while a forward runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from behaviortrace.capture.batch import Row, collate
from behaviortrace.capture.layout import Layout
from behaviortrace.capture.objective import token_logprobs
from behaviortrace.errors import BehaviorTraceError

Direction = Sequence[torch.Tensor]
"""One tensor a trainable parameter, of its shape, in ``named_parameters()`` order."""

TOLERANCE = 0.01
"""Largest relative disagreement (rms over tokens) of two step sizes that is let through."""

_GOOD = 0.002  # disagreement at which the search for a better step ends
_FIRST = 2e-3  # first step tried; found right for models of 1e4 as of 1e8 parameters
_CHANGE = 0.03  # change of log-probability, nats, at which rounding and curvature are both small
_RUNGS = 12  # steps tried at most
_SAMPLE = 1 / 16  # share of the rollouts on which steps are compared
_TOKENS = 32  # tokens that share must have at least


class Line:
    """The model anywhere on the line through its parameters along a direction."""

    def __init__(
        self, model: nn.Module, direction: Direction, pad_token_id: int, micro_batch: int
    ) -> None:
        self.model, self.pad, self.micro_batch = model, pad_token_id, micro_batch
        layout = Layout(model)
        self.parameters = layout.parameters
        self.direction = _checked(layout, direction)
        self.norm = math.hypot(
            *(float(torch.linalg.vector_norm(d, dtype=torch.float64)) for d in self.direction)
        )
        if not self.norm > 0 or not math.isfinite(self.norm):
            raise BehaviorTraceError(
                f"the target direction has norm {self.norm:g}; token scores need a finite one "
                "above zero"
            )
        self.moved = [torch.empty_like(p, requires_grad=False) for p in self.parameters]
        self.position: float | None = None

    def __enter__(self) -> Line:
        self._stack = ExitStack()
        copies = {id(p): m for p, m in zip(self.parameters, self.moved, strict=True)}
        for module in self.model.modules():
            if not isinstance(module, nn.Embedding) or id(module.weight) not in copies:
                continue
            if module.padding_idx is not None:
                self._stack.enter_context(_padding_kept(module, module.padding_idx))
        self._stack.enter_context(_standing_in(self.model, copies))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def move(self, position: float) -> None:
        """Put the model at a signed distance from its own parameters."""
        if position == self.position:
            return
        self.position = None
        with torch.no_grad():
            for own, d, out in zip(self.parameters, self.direction, self.moved, strict=True):
                torch.add(own, d, alpha=position / self.norm, out=out)
        self.position = position

    def logps(self, rows: Sequence[Row], chosen: Sequence[int]) -> dict[int, np.ndarray]:
        """Log-probabilities of the chosen rows' tokens where the model now is, float64."""
        found: dict[int, np.ndarray] = {}
        # Rows of like length share a batch, so that little is spent on padding.
        order = sorted(chosen, key=lambda i: len(rows[i][0]) + len(rows[i][1]))
        for at in range(0, len(order), self.micro_batch):
            members = order[at : at + self.micro_batch]
            batch = collate([rows[i] for i in members], self.pad, None, self.moved[0].device)
            with torch.no_grad():
                values = token_logprobs(self.model, batch).double().cpu().numpy()
            found |= {i: v[: len(rows[i][1])] for i, v in zip(members, values, strict=True)}
        return found

    def slopes(
        self, step: float, rows: Sequence[Row], chosen: Sequence[int]
    ) -> dict[int, np.ndarray]:
        """Central difference of log-probability by distance, for the chosen rows."""
        if not chosen:
            return {}
        # The nearer end first, which is where the model may already be.
        ends = (step, -step) if self.position == step else (-step, step)
        at = {}
        for end in ends:
            self.move(end)
            at[end] = self.logps(rows, chosen)
        return {i: (at[step][i] - at[-step][i]) / (2 * step) for i in chosen}


def choose_step(line: Line, rows: Sequence[Row]) -> tuple[float, dict[int, np.ndarray]]:
    """The step at which e and 2e agree best on a sample, and the sample's slopes there.

    Rounding error falls with the step and error of curvature grows with its square, so where two
    neighbours agree, both are small; three quarters of the second is gone at the smaller step.
    """
    sample = _sample(rows)
    step, apart, slopes = _search(line, rows, sample)
    if apart > TOLERANCE and len(sample) < len(rows):
        # The sample's tokens may just be ones the target hardly moves.
        step, apart, slopes = _search(line, rows, list(range(len(rows))))
    if apart > TOLERANCE:
        dtype = str(line.parameters[0].dtype).removeprefix("torch.")
        raise BehaviorTraceError(
            f"token scores are lost in rounding: at the best step along the target, {step:.1e}, "
            f"twice the step gives a slope that differs by {apart:.1%} (allowed {TOLERANCE:.0%}) "
            f"with {dtype} parameters; "
            f"{'use another target' if dtype == 'float32' else 'load the model in float32'}"
        )
    return step, slopes


def _search(
    line: Line, rows: Sequence[Row], sample: Sequence[int]
) -> tuple[float, float, dict[int, np.ndarray]]:
    """The best step of the ladder, its relative disagreement with twice it, the slopes there."""
    tried: dict[float, dict[int, np.ndarray]] = {}
    apart: dict[float, float] = {}

    def slopes(step: float) -> np.ndarray:
        if step not in tried:
            tried[step] = line.slopes(step, rows, sample)
        return np.concatenate([tried[step][i] for i in sample])

    step = _FIRST
    while step not in apart and len(apart) < _RUNGS:
        # The longer first: where the shorter is taken, the model is already there.
        double, single = slopes(2 * step), slopes(step)
        size = float(np.sqrt(np.mean(single**2)))
        rest = float(np.sqrt(np.mean((single - double) ** 2)))
        apart[step] = rest / size if size > 0 and math.isfinite(rest) else math.inf
        if apart[step] <= _GOOD:
            break
        step = _next_step(step, size, apart)
    best = min(apart, key=apart.__getitem__)
    return best, apart[best], tried[best]


def _sample(rows: Sequence[Row]) -> list[int]:
    """Rows to compare steps on: evenly spread, a share of all, with enough tokens if there are."""
    count = max(1, round(_SAMPLE * len(rows)))
    while True:
        sample = [len(rows) * (2 * i + 1) // (2 * count) for i in range(count)]
        if count == len(rows) or sum(len(rows[i][1]) for i in sample) >= _TOKENS:
            return sample
        count += 1


def _next_step(step: float, size: float, apart: dict[float, float]) -> float:
    """Where to look next; a step already tried ends the search.

    Rounding makes neighbours disagree by a / e, curvature by b e^2. Every step tried bounds both
    from above, and their sum is least at e = (a / 2b)^(1/3). After the first step alone, go where
    log-probabilities change enough. Steps are powers of two apart, so that none is computed twice.
    """
    finite = {e: d for e, d in apart.items() if 0 < d < math.inf}
    if not finite:
        return 2 * step
    if len(apart) == 1:
        wanted = _CHANGE / size
    else:
        rounding = min(d * e for e, d in finite.items())
        curvature = min(d / e**2 for e, d in finite.items())
        wanted = (rounding / (2 * curvature)) ** (1 / 3)
    following = step * 2.0 ** round(math.log2(wanted / step))
    if following not in apart:
        return following
    best = min(finite, key=finite.__getitem__)
    return 2 * best if 2 * best not in apart else best / 2


def _checked(layout: Layout, direction: Direction) -> list[torch.Tensor]:
    """The direction on the parameters' devices and in their dtypes."""
    if len(direction) != len(layout.slots):
        raise BehaviorTraceError(
            f"the target direction has {len(direction)} tensors for {len(layout.slots)} trainable "
            "parameters; give one each, in named_parameters() order"
        )
    for slot, one in zip(layout.slots, direction, strict=True):
        if tuple(one.shape) != slot.shape:
            raise BehaviorTraceError(
                f"the target direction has shape {tuple(one.shape)} for parameter {slot.name!r} of "
                f"shape {slot.shape}; give one tensor a trainable parameter, in "
                "named_parameters() order"
            )
    return [
        one.detach().to(p.device, p.dtype)
        for one, p in zip(direction, layout.parameters, strict=True)
    ]


@contextmanager
def _standing_in(model: nn.Module, copies: dict[int, torch.Tensor]) -> Iterator[None]:
    """Let other tensors stand in for parameters, wherever they are used; see ``copies`` by id."""
    sites = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in copies
    ]
    places: Any
    try:
        for module, name, parameter in sites:
            places = module._parameters
            places[name] = copies[id(parameter)]
        yield
    finally:
        for module, name, parameter in sites:
            module._parameters[name] = parameter


@contextmanager
def _padding_kept(module: nn.Module, index: int) -> Iterator[None]:
    """Look the padding entry up in the embedding's own weight, whatever stands in for it."""
    with torch.no_grad():
        own = module(torch.tensor(index, device=next(module.parameters()).device))

    def keep(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        return torch.where(inputs[0].eq(index)[..., None], own, output)

    handle = module.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()
