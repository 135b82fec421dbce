"""Rows' gradients of parameters that a module uses in whatever way: the module is run again.

The rules of :mod:`behaviortrace.capture.taps` know how a module uses its parameters. Where none
applies, the module's forward runs as ever with its parameters detached, and in the backward it is
run again to have autograd say what each row sends to them: once for every row alone or, where it
draws random numbers (dropout), over the whole micro-batch with the same draws and one row's
upstream gradient at a time, which costs as many backwards as there are rows.

All this is right only if a row's output depends on that row alone. It is found out by trying, and
a module for which it is not so is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from behaviortrace.capture.call import Call, Tensors, float_outputs, vjp
from behaviortrace.capture.rules import Forward, RowEngine, Tap, handed, replaced
from behaviortrace.errors import BehaviorTraceError

_EXACT, _ROUNDED = 1e-4, 2e-2  # relative difference that rounding explains: fp32 on a CPU, else
_CANCELLED = 10  # times as much in gradients, whose terms cancel


class RerunTap(Tap):
    """Takes over the parameters that a module uses itself.

    Args:
        module: the module whose forward uses them.
        name: its qualified name.
        places: where it finds them: modules (itself, containers in it) and local names.
        slots: the parameters' qualified names, for messages.
        method: what is wrapped; a method other than the forward makes a row for each of the
            micro-batch, whatever it is given.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        places: list[tuple[nn.Module, str]],
        slots: list[str],
        method: str = "forward",
    ) -> None:
        super().__init__(module, name, method)
        self.places, self.slots = places, slots
        self.tried = False
        self.uses = 0

    def parameters(self) -> list[nn.Parameter]:
        """See :meth:`Tap.parameters`."""
        found = (owner._parameters[name] for owner, name in self.places)
        return list({id(p): p for p in found if p is not None}.values())

    def wrap(self, engine: RowEngine, forward: Forward) -> Forward:
        """See :meth:`Tap.wrap`."""

        def tapped_forward(*args: Any, **kwargs: Any) -> Any:
            if not engine.armed or not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            return self._captured(engine, forward, args, kwargs)

        return tapped_forward

    def _captured(self, engine: RowEngine, forward: Forward, args: Any, kwargs: Any) -> Any:
        parameters, rows = self.parameters(), engine.sink.rows
        call = Call(forward, args, kwargs, rows, parameters[0].device)
        if self.method == "forward" and not any(call.by_row):
            raise self.refusal(
                f"no input of it has the {rows} rows of the micro-batch on its first axis"
            )
        with self.standing_in(dict(zip(map(id, parameters), _detached(parameters), strict=True))):
            changed = call.first([*parameters, *self.module.buffers()])
        if changed:
            raise self.refusal("it changes its input, buffers or parameters in place as it runs")
        for out in call.outs:
            if out.dim() == 0 or out.shape[0] != rows:
                raise self.refusal(
                    f"its output of shape {tuple(out.shape)} does not keep the {rows} rows of the "
                    "micro-batch apart"
                )
        tensors = (*call.outs, *_detached(call.tensors), *parameters)
        return call.result(_Rerun.apply(self, engine, call, *tensors))

    def row_gradients(self, call: Call, seen: Tensors, given: Tensors, gys: Tensors) -> Tensors:
        """Gradients of the parameters, each (rows, *shape).

        Args:
            call: how the module was called.
            seen: its input tensors.
            given: its output tensors.
            gys: gradients of the loss by those.
        """
        trial = _Trial(self, call, seen, given, gys)
        found = None if call.random else trial.alone()
        if found is None:
            found = trial.together()
        self.tried |= call.rows > 1
        self.uses += 1
        return found

    @contextmanager
    def standing_in(self, tensors: dict[int, torch.Tensor]) -> Iterator[None]:
        """Let the module find other tensors in place of its parameters, by their identity."""
        with ExitStack() as stack:
            for owner, name in self.places:
                stack.enter_context(replaced(owner, {name: tensors[id(owner._parameters[name])]}))
            yield

    def refusal(self, what: str) -> BehaviorTraceError:
        """The error that says why the module's rows cannot be told apart."""
        more = f" and {len(self.slots) - 1} more" if len(self.slots) > 1 else ""
        return BehaviorTraceError(
            f"{self.name or 'the model'}: {what}; freeze {self.slots[0]!r}{more}, or pass "
            "allow_uncovered=[...] to train without its gradient being recorded"
        )


class _Rerun(torch.autograd.Function):
    """Identity on a module's outputs whose backward gives the parameters' gradients."""

    @staticmethod
    def forward(
        ctx: Any, tap: RerunTap, engine: RowEngine, call: Call, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        outs, inputs = len(call.outs), len(call.tensors)
        ctx.tap, ctx.engine, ctx.call, ctx.outs = tap, engine, call, outs
        given, ctx.parameters = tensors[:outs], tensors[outs + inputs :]
        ctx.save_for_backward(*(o.detach() for o in given), *tensors[outs : outs + inputs])
        call.forget()
        return tuple(out.clone() for out in given)  # what follows may change them in place

    @staticmethod
    def backward(ctx: Any, *gys: torch.Tensor) -> Any:
        saved, engine = ctx.saved_tensors, ctx.engine
        given, seen = list(saved[: ctx.outs]), list(saved[ctx.outs :])
        engine.armed = False  # the rules of modules inside have had their turn
        try:
            rows = ctx.tap.row_gradients(ctx.call, seen, given, list(gys))
        finally:
            engine.armed = True
        with torch.no_grad():
            sums = [
                engine.sink.dense(engine.contribute(p), g)
                for p, g in zip(ctx.parameters, rows, strict=True)
            ]
        nothing = [None] * len(seen)
        return None, None, None, *gys, *nothing, *handed(engine, ctx.parameters, sums)


class _Trial:
    """One backward of one call: rows' gradients, and whether they are those of rows alone."""

    def __init__(
        self, tap: RerunTap, call: Call, seen: Tensors, given: Tensors, gys: Tensors
    ) -> None:
        self.tap, self.call, self.seen, self.given, self.gys = tap, call, seen, given, gys
        self.parameters = tap.parameters()
        self.value = _EXACT if call.precise([*seen, *given, *self.parameters]) else _ROUNDED
        self.gradient = _CANCELLED * self.value

    def alone(self) -> Tensors | None:
        """Every row run by itself; None where that does not give the row's output."""
        found: list[Tensors] = []
        new = not self.tap.tried
        for row in range(self.call.rows):
            try:
                outs, wanted = self._run(self.call.pick(self.seen, row), by_input=new)
            except (RuntimeError, TypeError, ValueError, IndexError):
                return None  # it does not run on one row; what it does on all will be tried
            if not self._same(outs, [given[row : row + 1] for given in self.given]):
                return None
            found.append(vjp(outs, wanted, [gy[row : row + 1] for gy in self.gys]))
        count = len(self.parameters)
        stacked = [torch.stack(each) for each in list(zip(*found, strict=True))[:count]]
        if new and self.call.rows > 1:
            outs, wanted = self._run(self.seen)
            whole = vjp(outs, wanted, self.gys)
            parts = [s.sum(0) for s in stacked]
            parts += [torch.cat(each) for each in list(zip(*found, strict=True))[count:]]
            off = max(_apart(a, b) for a, b in zip(parts, whole, strict=True))
            if not off <= self.gradient:
                raise self.tap.refusal(
                    "the gradients of its rows, each run alone, differ from that of the whole "
                    f"micro-batch by {off:.1e} of it"
                )
        return stacked

    def together(self) -> Tensors:
        """The whole micro-batch run again, one row's upstream gradient at a time."""
        outs, wanted = self._run(self.seen)
        if not self._same(outs, self.given):
            raise self.tap.refusal(
                "run again with the same inputs and random numbers, its output is another"
            )
        rows, count = self.call.rows, len(self.parameters)
        found = [vjp(outs, wanted, self._only(row), keep=True) for row in range(rows)]
        every = rows > 1 and not (self.tap.tried and self.call.random)
        for row in range(rows) if every else [self.tap.uses % rows]:
            self._try(row, found[row][:count])
        for row, gradients in enumerate(found):
            for gx in gradients[count:]:
                leak = gx.clone()
                leak[row] = 0
                if not float(leak.norm()) <= self.gradient * float(gx.norm()):
                    raise self._mixes(row, float(leak.norm()) / float(gx.norm()))
        return [torch.stack(each) for each in list(zip(*found, strict=True))[:count]]

    def _try(self, row: int, gradients: Tensors) -> None:
        """Put the row in the place of every other: neither output nor gradient may change."""
        inputs = self.call.pick(self.seen, row)
        twins = [
            one.expand_as(t).contiguous() if by_row else t
            for one, t, by_row in zip(inputs, self.seen, self.call.by_row, strict=True)
        ]
        outs, wanted = self._run(twins)
        for out, given in zip(outs, self.given, strict=True):
            off = float((out[row] - given[row]).norm()) / _size(given[row], given)
            if not off <= self.value:
                raise self._mixes(row, off)
        again = vjp(outs, wanted, self._only(row))
        for now, before in zip(again, gradients, strict=False):  # inputs come after
            if not (off := _apart(now, before)) <= self.gradient:
                raise self._mixes(row, off, "gradient")

    def _mixes(self, row: int, off: float, what: str = "output") -> BehaviorTraceError:
        return self.tap.refusal(
            f"it mixes rows: row {row} of its {what} changes by {off:.1e} of itself with the other "
            f"{self.call.rows - 1} rows of the micro-batch"
        )

    def _run(self, inputs: Tensors, *, by_input: bool = True) -> tuple[Tensors, Tensors]:
        """Outputs, and what to differentiate by: the parameters, then inputs of rows."""
        copies = [p.detach().requires_grad_() for p in self.parameters]
        inputs = [
            t.detach().requires_grad_() if by_input and by_row and t.is_floating_point() else t
            for t, by_row in zip(inputs, self.call.by_row, strict=True)
        ]
        names = map(id, self.parameters)
        with self.tap.standing_in(dict(zip(names, copies, strict=True))), torch.enable_grad():
            outs = float_outputs(self.call.again(inputs))
        return outs, copies + [t for t in inputs if t.requires_grad]

    def _same(self, outs: Tensors, wanted: Tensors) -> bool:
        """Whether outputs are those wanted, every row but for rounding."""
        if [o.shape for o in outs] != [w.shape for w in wanted]:
            return False
        return all(
            float((out[i] - want[i]).norm()) <= self.value * _size(want[i], want)
            for out, want in zip(outs, wanted, strict=True)
            for i in range(len(want))
        )

    def _only(self, row: int) -> Tensors:
        """The upstream gradients, zero but for one row."""
        only = [torch.zeros_like(gy) for gy in self.gys]
        for one, gy in zip(only, self.gys, strict=True):
            one[row] = gy[row]
        return only


def _detached(tensors: Iterable[torch.Tensor]) -> Tensors:
    return [t.detach() for t in tensors]


def _size(part: torch.Tensor, whole: torch.Tensor) -> float:
    """What a difference in a part is measured by: its norm, if it is no vanishing part."""
    return float(part.norm()) + 1e-3 * float(whole.norm()) + 1e-30


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm()) / (float(wanted.norm()) + 1e-30)
