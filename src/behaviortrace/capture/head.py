"""Row gradients of TRL's fused LM head, which multiplies by the weight without running a module.

TRL trains through ``ChunkedLogProbFunction``: log-probabilities of ``hidden @ weight.T`` without
materialising logits. Module hooks never see it. Here its forward is kept, and its backward is
replaced by one that keeps rows apart, skips positions no loss looks at, and, where the loss is a
row weight times the mean log-probability, sends the *plain* gradient upstream; the row weights are
put back when rows are summed.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from trl.kernels import ChunkedLogProbFunction

from behaviortrace.capture.layout import Slot
from behaviortrace.capture.sinks import RowSink
from behaviortrace.capture.tied import TiedGather

_VOCABULARY_CHUNK = 4096


class HeadEngine(Protocol):
    """What the head asks of the engine that drives it.

    Attributes:
        sink: where rows' gradients go.
    """

    sink: RowSink

    def contribute(self, parameter: torch.Tensor | None) -> Slot:
        """The slot of a parameter, for a contribution to its gradient."""

    def gave(self, parameter: torch.Tensor | None, total: torch.Tensor | None) -> None:
        """Note what a contribution adds to ``parameter.grad``."""

    def head_positions(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, positions) flat indices into the head's input where the loss may look, or -1."""

    def saw_logprobs(self, logps: torch.Tensor) -> None:
        """Keep the forward's log-probabilities at :meth:`head_positions`."""

    def settle_weights(
        self, grad_logp: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The gradient by log-probability to send upstream."""

    def head_weight(
        self, weight: torch.Tensor | None, shape: torch.Size
    ) -> tuple[Slot | None, TiedGather]:
        """Slot of the head's weight, and the collector of its gradient at input tokens if tied."""


class RowLogProb(torch.autograd.Function):
    """TRL's fused log-probabilities with a backward that keeps rows apart."""

    @staticmethod
    def forward(ctx: Any, engine: HeadEngine, hidden: torch.Tensor, *rest: Any) -> Any:
        """As ``ChunkedLogProbFunction.forward``, with the engine put before its arguments."""
        outputs = ChunkedLogProbFunction.forward(ctx, hidden, *rest)
        ctx.engine = engine
        ctx.where = engine.head_positions(hidden)
        engine.saw_logprobs(outputs[0].detach()[ctx.where.clamp(min=0)])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Gradients of hidden, weight and bias; rows go to the engine's sink on the way."""
        hidden, weight, bias, targets, log_z, entropy = ctx.saved_tensors
        engine, where = ctx.engine, ctx.where
        at = where.clamp(min=0)

        def rows(flat: torch.Tensor | None) -> torch.Tensor | None:
            return None if flat is None else flat.float()[at].masked_fill(where < 0, 0.0)

        grad_logp, grad_entropy = rows(grads[0]), rows(grads[1])
        grad_logp = engine.settle_weights(grad_logp, grad_entropy)
        tile = _LogitGradient(ctx, hidden[at], targets[at], log_z[at], entropy[at])
        _, needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:4]
        slot, tied = engine.head_weight(weight if needs_weight else None, where.shape)
        grad_hidden = torch.zeros(*where.shape, hidden.shape[1], device=hidden.device)
        total = None
        if slot is not None and engine.sink.want_sum:
            total = torch.empty(weight.shape, device=weight.device)
        grad_bias = []
        for start in range(0, weight.shape[0], _VOCABULARY_CHUNK):
            end = min(start + _VOCABULARY_CHUNK, weight.shape[0])
            part = None if bias is None else bias[start:end]
            logits = tile(weight[start:end], part, start, grad_logp, grad_entropy)
            if needs_hidden:
                grad_hidden += logits @ weight[start:end].to(ctx.compute_dtype).float()
            if slot is not None:
                into = None if total is None else total[start:end]
                first = start * weight.shape[1]
                engine.sink.outer(slot, logits, tile.hidden32, first, into)
                tied.add(logits, start)
            if needs_bias:
                grad_bias.append(logits.sum(1))
        total = tied.finish(tile.hidden32, total)
        engine.gave(weight, total)
        of_bias = None
        if needs_bias:
            of_bias = engine.sink.dense(engine.contribute(bias), torch.cat(grad_bias, 1))
            engine.gave(bias, of_bias)
        return (
            None,
            _scattered(grad_hidden, where, hidden) if needs_hidden else None,
            None if total is None else total.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            *[None] * 6,
        )


def _scattered(rows: torch.Tensor, where: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Gradients (rows, positions, width) put back at their flat positions."""
    flat = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    used = where >= 0
    flat[where[used]] = rows[used]
    return flat.to(like.dtype)


class _LogitGradient:
    """Recomputes one vocabulary chunk of logits and turns it into the loss's gradient."""

    def __init__(
        self,
        ctx: Any,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        log_z: torch.Tensor,
        entropy: torch.Tensor,
    ) -> None:
        self.settings, self.dtype = ctx.kernel_args, ctx.compute_dtype
        self.hidden = hidden.to(self.dtype)
        self.hidden32 = self.hidden.float().contiguous()
        self.targets, self.log_z, self.entropy = targets, log_z, entropy

    def __call__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        start: int,
        grad_logp: torch.Tensor | None,
        grad_entropy: torch.Tensor | None,
    ) -> torch.Tensor:
        """(rows, positions, chunk) float32 gradient with respect to the projection's output."""
        logits = self.hidden @ weight.to(self.dtype).t()
        if bias is not None:
            logits = logits + bias.to(self.dtype)
        y = logits.float()
        scale, inverse = self.settings["logit_scale"], self.settings["inv_t"]
        slope: float | torch.Tensor = scale * inverse
        if self.settings["HAS_SOFTCAP"]:
            t = torch.tanh(y * scale / self.settings["softcap"])
            y, slope = self.settings["softcap"] * t * inverse, (1 - t * t) * scale * inverse
        elif slope != 1:
            y = y.mul_(slope)
        log_p = y.sub_(self.log_z[..., None])
        grad = torch.exp(log_p)
        if grad_entropy is not None:
            of_entropy = grad * (log_p + self.entropy[..., None]) * grad_entropy[..., None]
        if grad_logp is not None:
            grad.mul_(-grad_logp[..., None])
            local = self.targets - start
            inside = (local >= 0) & (local < weight.shape[0])
            grad.scatter_add_(
                2,
                local.clamp(0, weight.shape[0] - 1)[..., None],
                (grad_logp * inside)[..., None],
            )
        else:
            grad.zero_()
        if grad_entropy is not None:
            grad -= of_entropy
        if isinstance(slope, torch.Tensor) or slope != 1:
            grad *= slope
        return grad.to(self.dtype).float() if self.dtype != torch.float32 else grad
