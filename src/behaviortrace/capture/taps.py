"""Per-row parameter gradients from inside autograd's own backward, module by module.

A tapped module runs its own forward with its parameters detached, so outputs and input gradients
are bit for bit its own. The parameters' gradient is then computed once, by the tap, row by row,
and the weighted sum over rows is what autograd accumulates: capture replaces the weight gradient
instead of adding a second one. A rule says how a module's rows are told apart.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from behaviortrace.capture.layout import Slot
from behaviortrace.capture.rules import Forward, RowEngine, Tap, handed, replaced
from behaviortrace.errors import BehaviorTraceError

Gradients = list[torch.Tensor | None]


class Rule(Tap):
    """How one module's own parameters' gradients split into rows, whatever their input is.

    Args:
        module: the module.
        name: its qualified name, for messages.
        names: its trainable parameters, by local name.
    """

    def __init__(self, module: nn.Module, name: str, names: list[str]) -> None:
        super().__init__(module, name)
        self.names = names

    def parameters(self) -> list[nn.Parameter]:
        """See :meth:`Tap.parameters`."""
        found = (self.module._parameters[name] for name in self.names)
        return [parameter for parameter in found if parameter is not None]

    def slot(self, engine: RowEngine, name: str) -> Slot:
        """The slot of one of the parameters, for a contribution to its gradient."""
        return engine.contribute(self.module._parameters[name])

    def prepare(self, rows: int, x: torch.Tensor) -> torch.Tensor:
        """The input the module should run on; its first axis must be the rows."""
        if x.shape[0] != rows:
            raise BehaviorTraceError(
                f"{self.name}: its input of shape {tuple(x.shape)} does not keep the {rows} rows "
                "of the micro-batch apart; freeze its parameters"
            )
        return x

    def note(self, engine: RowEngine, x: torch.Tensor) -> None:
        """Tell the engine in the forward what another module's backward will need."""

    @abstractmethod
    def gradients(self, engine: RowEngine, x: torch.Tensor, gy: torch.Tensor) -> Gradients:
        """Weighted sums over rows, one a trainable parameter, after the sink has seen the rows."""

    def wrap(self, engine: RowEngine, forward: Forward) -> Forward:
        """See :meth:`Tap.wrap`."""

        def tapped_forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not engine.armed or not torch.is_grad_enabled():
                return forward(x, *args, **kwargs)
            x = self.prepare(engine.sink.rows, x)
            self.note(engine, x)
            parameters = self.parameters()
            detached = {n: p.detach() for n, p in zip(self.names, parameters, strict=True)}
            with replaced(self.module, detached):
                out = forward(x, *args, **kwargs)
            return _Tap.apply(out, x.detach(), self, engine, *parameters)

        return tapped_forward


def _positions(tensor: torch.Tensor) -> torch.Tensor:
    """(rows, positions, width) float32 of any (rows, ..., width)."""
    return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1]).float()


class LinearRule(Rule):
    """``nn.Linear`` and GPT-2's ``Conv1D``, whose weight is stored transposed."""

    def prepare(self, rows: int, x: torch.Tensor) -> torch.Tensor:
        """The input in the precision that autocast would multiply it in."""
        x = super().prepare(rows, x)
        kind = x.device.type
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

    def gradients(self, engine: RowEngine, x: torch.Tensor, gy: torch.Tensor) -> Gradients:
        """See :meth:`Rule.gradients`."""
        x, gy = _positions(x), _positions(gy)
        left, right = (x, gy) if isinstance(self.module, Conv1D) else (gy, x)
        return [
            engine.sink.outer(self.slot(engine, name), left, right)
            if name == "weight"
            else engine.sink.dense(self.slot(engine, name), gy.sum(1))
            for name in self.names
        ]


class EmbeddingRule(Rule):
    """``nn.Embedding``; its padding entry gets no gradient, as in autograd."""

    def prepare(self, rows: int, x: torch.Tensor) -> torch.Tensor:
        """Ids shared by all rows (learned positions) are repeated, so that rows stay apart."""
        if x.dim() == 2 and x.shape[0] == 1 and rows > 1:
            x = x.expand(rows, -1)
        return super().prepare(rows, x)

    def ids(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, positions) ids, with -1 where no gradient flows."""
        ids = x.reshape(x.shape[0], -1)
        padding: int | None = self.module.padding_idx  # type: ignore[assignment]  # nn.Module is untyped
        return ids if padding is None else ids.masked_fill(ids.eq(padding), -1)

    def note(self, engine: RowEngine, x: torch.Tensor) -> None:
        """A tied head needs the ids in its backward."""
        engine.note_ids(self.module._parameters["weight"], self.ids(x))

    def gradients(self, engine: RowEngine, x: torch.Tensor, gy: torch.Tensor) -> Gradients:
        """See :meth:`Rule.gradients`."""
        slot = self.slot(engine, "weight")
        ids, gy = self.ids(x), _positions(gy)
        total = engine.join_tied(slot, ids, gy)
        return [engine.sink.positions(slot, ids, gy, total)]


class ScaleRule(Rule):
    """A norm: output is affine in its weight, element by element, plus an optional bias.

    Whether that is so is found by trying, so RMSNorm variants need no list of classes.
    """

    def normalised(self, x: torch.Tensor) -> torch.Tensor:
        """Derivative of the output with respect to the weight, at every position."""
        ones, zeros = {}, {}
        for name, parameter in self.module._parameters.items():
            if parameter is not None:
                zeros[name] = torch.zeros_like(parameter)
                ones[name] = torch.ones_like(parameter) if name == "weight" else zeros[name]
        with torch.no_grad():
            with replaced(self.module, ones):
                at_one = self.module_forward(x)
            with replaced(self.module, zeros):
                at_zero = self.module_forward(x)
        return at_one - at_zero

    def module_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The module's own class forward, untapped."""
        return type(self.module).forward(self.module, x)

    def gradients(self, engine: RowEngine, x: torch.Tensor, gy: torch.Tensor) -> Gradients:
        """See :meth:`Rule.gradients`."""
        by_name = {"bias": _positions(gy)}
        if "weight" in self.names:
            by_name["weight"] = _positions(gy) * _positions(self.normalised(x))
        return [
            engine.sink.dense(self.slot(engine, name), by_name[name].sum(1)) for name in self.names
        ]

    def holds(self) -> bool:
        """Whether the module really is affine in its weight and bias, tried on random input."""
        weight = self.module._parameters.get("weight")
        if weight is None or weight.dim() != 1 or set(self.names) - {"weight", "bias"}:
            return False
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(weight.device, weight.dtype)

        x, w = random(2, 3, weight.shape[0]), random(weight.shape[0])
        values = {"weight": w}
        if self.module._parameters.get("bias") is not None:
            values["bias"] = random(weight.shape[0])
        try:
            with torch.no_grad():
                with replaced(self.module, values):
                    seen = self.module_forward(x)
                with replaced(self.module, {n: torch.zeros_like(v) for n, v in values.items()}):
                    at_zero = self.module_forward(x)
                affine = at_zero + w * self.normalised(x) + values.get("bias", 0.0)
        except (RuntimeError, TypeError):
            return False
        tolerance = 1e-4 if weight.dtype == torch.float32 else 5e-2
        return seen.shape == x.shape and torch.allclose(seen, affine, tolerance, tolerance)


def rule_for(module: nn.Module, name: str, names: list[str]) -> Rule | None:
    """The rule that covers a module's trainable parameters, or None."""
    if not set(names) <= {"weight", "bias"}:
        return None
    if isinstance(module, Conv1D) or (
        isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    ):
        return LinearRule(module, name, names)
    if isinstance(module, nn.Embedding) and type(module).forward is nn.Embedding.forward:
        plain = module.max_norm is None and not module.sparse and not module.scale_grad_by_freq
        return EmbeddingRule(module, name, names) if plain else None
    scale = ScaleRule(module, name, names)
    return scale if scale.holds() else None


class _Tap(torch.autograd.Function):
    """Identity on a module's output whose backward gives the parameters' gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        out: torch.Tensor,
        x: torch.Tensor,
        rule: Rule,
        engine: RowEngine,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.rule, ctx.engine, ctx.parameters = rule, engine, parameters
        ctx.save_for_backward(x)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        (gy,) = outputs
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            sums = ctx.rule.gradients(ctx.engine, x, gy)
        return gy, None, None, None, *handed(ctx.engine, ctx.parameters, sums)
