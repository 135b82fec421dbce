"""The engine: rows' gradients of one forward and backward, whatever drives them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
import torch
import trl.trainer.utils as trl_utils
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from behaviortrace.capture.coverage import cover, refuse_missing
from behaviortrace.capture.head import RowLogProb
from behaviortrace.capture.layout import Layout, Slot
from behaviortrace.capture.ledger import Ledger
from behaviortrace.capture.sinks import RowSink
from behaviortrace.capture.tied import TiedGather
from behaviortrace.errors import BehaviorTraceError

_CONSTANT = 1e-6  # spread of a row's token weights, relative, below which they count as equal


@dataclass(frozen=True)
class RowBatch:
    """What one armed forward and backward told about its rows.

    Attributes:
        plain: whether the sink saw plain gradients (of minus the mean token log-probability); if
            not, it saw each row's share of the loss's own gradient.
        weight: (rows,) update gradient = weight x what the sink saw.
        norm: (rows,) exact L2 norm of what the sink saw; NaN where a module ran more than once,
            which sketches allow and sums of squares do not, and where gradients are never formed.
        logps: (rows, positions) log-probabilities where the loss looks, or None.
        tokens: (rows,) positions under the mask, or None without a mask.
        fluency: (rows,) mean log-probability under the mask, NaN where it is empty; or None.
        reason: why the sink did not see plain gradients; empty if it did.
    """

    plain: bool
    weight: np.ndarray
    norm: np.ndarray
    logps: torch.Tensor | None
    tokens: np.ndarray | None
    fluency: np.ndarray | None
    reason: str = ""

    def norms(self, sketches: np.ndarray) -> np.ndarray:
        """(rows,) float64 exact norms; those of the (rows, dim) sketches where there is none."""
        return np.where(np.isnan(self.norm), np.linalg.norm(sketches, axis=1), self.norm)


class RowGradients:
    """Splits every trainable parameter's gradient into rows, inside the backward that trains.

    Args:
        model: the model that trains; PEFT models count their trainable parameters only.
        sink: where rows' gradients go.
        allow_uncovered: names of trainable parameters that may go without capture.

    Raises:
        BehaviorTraceError: a trainable parameter that no rule covers, by name.

    Use as a context manager; within it, arm, run forward and backward, disarm.
    """

    def __init__(
        self, model: nn.Module, sink: RowSink, allow_uncovered: Collection[str] = ()
    ) -> None:
        self.model, self.sink = model, sink
        self.layout = Layout(model)
        self.armed = False
        self.mask: torch.Tensor | None = None
        self._scored: torch.Tensor | None = None
        self._unit = self._plain = self._repeated = False
        self._reason = ""
        self._given: set[str] = set()
        self._logps: torch.Tensor | None = None
        self._inputs: dict[str, torch.Tensor] = {}
        self._tied: dict[str, TiedGather] = {}
        found = cover(model, self.layout, allow_uncovered)
        self._rules, self.uncovered = found.taps, found.uncovered
        refuse_missing(self.uncovered, allow_uncovered)
        if not self.layout.slots:
            raise BehaviorTraceError("the model has no trainable parameter; nothing to capture")
        self._ledger = Ledger(self.layout, found.rerun)
        self._batch_norms = [x for x in model.named_modules() if isinstance(x[1], _BatchNorm)]

    def __enter__(self) -> RowGradients:
        self._kept = [(r.module, r.method, r.module.__dict__.get(r.method)) for r in self._rules]
        for rule in self._rules:
            setattr(rule.module, rule.method, rule.wrap(self, getattr(rule.module, rule.method)))
        self._ledger.open()
        self._head = trl_utils._ChunkedLogProbFunction
        trl_utils._ChunkedLogProbFunction = SimpleNamespace(apply=self._apply_head)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        trl_utils._ChunkedLogProbFunction = self._head
        for module, method, own in self._kept:
            if own is None:
                del module.__dict__[method]
            else:
                module.__dict__[method] = own
        self._ledger.close()
        self.armed = False

    def _apply_head(self, hidden: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Any:
        if self.armed and torch.is_grad_enabled():
            return RowLogProb.apply(self, hidden, weight, *rest)
        return self._head.apply(hidden, weight, *rest)

    def arm(
        self,
        rows: int,
        mask: torch.Tensor | None = None,
        *,
        scored: torch.Tensor | None = None,
        unit: bool = True,
    ) -> None:
        """Expect one forward and backward over so many rows.

        Args:
            rows: size of the first axis of every module's input.
            mask: (rows, positions) loss mask over the last label positions; without it all count.
            scored: (rows, positions) positions that have a label, where they are more than the
                mask's; on CUDA the head sees no others.
            unit: send plain gradients through the backward where the loss allows it.

        Raises:
            BehaviorTraceError: a batch norm that would mix the rows, by name.
        """
        for name, module in self._batch_norms:
            if module.training or not module.track_running_stats:
                raise BehaviorTraceError(
                    f"{name}: a batch norm in training mode mixes the rows of a micro-batch, so no "
                    "rollout has a gradient of its own; keep it in eval mode or use another norm"
                )
        self.sink.begin(rows, next(self.model.parameters()).device)
        self.mask, self._unit, self._plain = mask, unit and not self.uncovered, False
        self._scored = mask if scored is None else scored
        self._logps, self._reason = None, "" if self._unit else "not asked for"
        self._given, self._repeated = set(), False
        self._inputs, self._tied = {}, {}
        self._ledger.begin()
        self.armed = True

    def disarm(self) -> RowBatch:
        """End the micro-batch; the sink holds its rows.

        Raises:
            BehaviorTraceError: a parameter is used outside the module that it belongs to, by name.
            RuntimeError: the head left its gradient to a tied embedding that never ran backward.
        """
        self.armed = False
        if self._tied:
            raise RuntimeError(f"no backward reached the tied embedding {next(iter(self._tied))!r}")
        self._ledger.check(self._given, self.uncovered)
        tokens = fluency = None
        if self.mask is not None:
            mask = self.mask.double()
            tokens = mask.sum(1).long().cpu().numpy()
            if self._logps is not None:
                fluency = ((self._logps.double() * mask).sum(1) / mask.sum(1)).cpu().numpy()
        norm = self.sink.squares.clamp(min=0).sqrt().cpu().numpy()
        return RowBatch(
            plain=self._plain,
            weight=self.sink.weight.double().cpu().numpy(),
            norm=np.full_like(norm, np.nan) if self._repeated else norm,
            logps=self._logps,
            tokens=tokens,
            fluency=fluency,
            reason=self._reason,
        )

    # What rules and the head ask of the engine.

    def contribute(self, parameter: torch.Tensor | None) -> Slot:
        """The slot of a parameter, for a contribution to its gradient."""
        slot = self._slot(parameter)
        self._repeated |= slot.name in self._given
        self._given.add(slot.name)
        return slot

    def _slot(self, parameter: torch.Tensor | None) -> Slot:
        slot = self.layout.slot(parameter)
        if slot is None:
            raise RuntimeError("a weight outside the model's trainable parameters asked for a slot")
        return slot

    def gave(self, parameter: torch.Tensor | None, total: torch.Tensor | None) -> None:
        """Note what a contribution adds to ``parameter.grad``."""
        if parameter is not None:
            self._ledger.gave(parameter, total)

    def note_ids(self, weight: torch.Tensor | None, ids: torch.Tensor) -> None:
        """Remember the ids an embedding looked up, until the backward of a head tied to it."""
        self._inputs[self._slot(weight).name] = ids

    def head_positions(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, positions) flat indices into the head's input where the loss may look, or -1."""
        rows, total = self.sink.rows, hidden.shape[0]
        if trl_utils._use_triton(hidden.device):
            if self._scored is None:
                raise RuntimeError("the compacted LM head needs the loss mask to tell rows apart")
            kept = self._scored.bool()
            where = torch.full(kept.shape, -1, dtype=torch.long, device=hidden.device)
            if int(kept.sum()) != total:
                raise RuntimeError(
                    f"the LM head saw {total} positions where {int(kept.sum())} have a label"
                )
            where[kept] = torch.arange(total, device=hidden.device)
            return where
        if total % rows:
            raise RuntimeError(f"the LM head saw {total} positions, not a multiple of {rows} rows")
        length = total // rows
        used = length if self.mask is None else min(length, self.mask.shape[1])
        first = torch.arange(rows, device=hidden.device)[:, None] * length + length - used
        return first + torch.arange(used, device=hidden.device)

    def saw_logprobs(self, logps: torch.Tensor) -> None:
        """Keep the forward's log-probabilities at :meth:`head_positions`."""
        if self._logps is not None:
            raise RuntimeError("the LM head ran twice in one micro-batch; its rows would be mixed")
        self._logps = logps

    def settle_weights(
        self, grad_logp: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Choose what flows upstream: plain gradients if the loss is row weight x plain objective.

        Args:
            grad_logp: (rows, positions) gradient of the loss by log-probability, or None.
            grad_entropy: likewise by entropy.

        Returns:
            The gradient to send upstream, in the shape of ``grad_logp``.
        """
        mask = self.mask
        if not self._unit:
            return grad_logp
        if mask is None or grad_logp is None or grad_entropy is not None:
            self._reason = "the loss looks at entropies" if grad_entropy is not None else "no mask"
            return grad_logp
        mask = mask.to(grad_logp)
        count = mask.sum(1).clamp(min=1)
        mean = (grad_logp * mask).sum(1) / count
        spread = (grad_logp - mean[:, None] * mask).abs().amax(1)
        if not bool((spread <= _CONSTANT * mean.abs()).all()):
            self._reason = "the loss weighs the tokens of a rollout differently"
            return grad_logp
        self._plain = True
        self.sink.weight = -mean * count
        return -mask / count[:, None]

    def head_weight(
        self, weight: torch.Tensor | None, shape: torch.Size
    ) -> tuple[Slot | None, TiedGather]:
        """Slot of the head's weight, and the collector of its gradient at input tokens if tied.

        Args:
            weight: the head's weight, None if it takes no gradient.
            shape: (rows, positions) of the head.
        """
        slot = None if weight is None else self._slot(weight)
        ids = None if slot is None else self._inputs.get(slot.name)
        gather = TiedGather(ids, shape[0], shape[1])
        if slot is not None and ids is not None:
            self._tied[slot.name] = gather  # counted where the embedding contributes
        elif slot is not None:
            self.contribute(weight)
        return slot, gather

    def join_tied(self, slot: Slot, ids: torch.Tensor, gy: torch.Tensor) -> torch.Tensor | None:
        """Join a tied weight's two uses at the embedding.

        Twice their inner product goes into the squared norms. Returns the head's weighted sum, for
        the embedding to add its own to and to give to autograd.
        """
        gather = self._tied.pop(slot.name, None)
        if gather is None or gather.gradient is None:
            return None
        both = (gather.gradient * gy).sum(2) * (ids >= 0)
        self.sink.squares += 2 * both.sum(1).double()
        return gather.total
