"""One call of a module, kept so that it can be run again alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from behaviortrace.capture.rules import Forward

Tensors = list[torch.Tensor]


class Call:
    """How a module was called: its arguments' structure, precision and random state.

    Args:
        forward: the module's forward.
        args: its positional arguments.
        kwargs: its named arguments.
        rows: in the micro-batch.
        device: the module's.

    Attributes:
        tensors: the tensors among the arguments, until :meth:`forget`.
        by_row: for each of them, whether its first axis is the rows.
        outs: the floating-point tensors of the output, until :meth:`forget`.
        random: whether the module drew random numbers.
    """

    def __init__(
        self, forward: Forward, args: Any, kwargs: Any, rows: int, device: torch.device
    ) -> None:
        self.forward, self.rows, self.device = forward, rows, device
        leaves, self._structure = tree_flatten((args, kwargs))
        self._is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self._others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        self.tensors: Tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.by_row = [t.dim() > 0 and t.shape[0] == rows for t in self.tensors]
        kind = device.type
        self._autocast = {"enabled": torch.is_autocast_enabled(kind)}
        self._dtype = torch.get_autocast_dtype(kind)
        self.outs: Tensors = []
        self.random = False

    def first(self, watched: Sequence[torch.Tensor]) -> bool:
        """Run the module; whether its inputs or the tensors watched were changed in place."""
        watched = [*self.tensors, *watched]
        versions = [t._version for t in watched]
        self._state = self._random_state()
        leaves = self._leaves(self.tensors)
        args, kwargs = tree_unflatten(leaves, self._structure)
        self._output = self.forward(*args, **kwargs)
        after = self._random_state()
        self.random = any(not torch.equal(a, b) for a, b in zip(self._state, after, strict=True))
        self.outs = float_outputs(self._output)
        return versions != [t._version for t in watched]

    def result(self, outs: Sequence[torch.Tensor]) -> Any:
        """The first run's output, with other tensors for its floating-point ones."""
        leaves, structure = tree_flatten(self._output)
        del self._output
        left = iter(outs)
        return tree_unflatten(
            [next(left) if _is_float(leaf) else leaf for leaf in leaves], structure
        )

    def forget(self) -> None:
        """Let go of the tensors, which autograd keeps from here on."""
        self.tensors, self.outs = [], []

    def again(self, inputs: Tensors) -> Any:
        """Run the module on other inputs, with the precision and random numbers of the first."""
        args, kwargs = tree_unflatten(self._leaves(inputs), self._structure)
        kind = self.device.type
        with (
            torch.autocast(kind, dtype=self._dtype, cache_enabled=False, **self._autocast),
            self._same_draws(),
        ):
            return self.forward(*args, **kwargs)

    def pick(self, inputs: Tensors, row: int) -> Tensors:
        """The inputs of one row alone."""
        return [
            t[row : row + 1] if by_row else t for t, by_row in zip(inputs, self.by_row, strict=True)
        ]

    def precise(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the module computes in fp32 or better, without the shortcuts of GPUs."""
        kinds = {t.dtype for t in tensors if t.is_floating_point()}
        exact = kinds <= {torch.float32, torch.float64} and not self._autocast["enabled"]
        return exact and self.device.type == "cpu"

    def _leaves(self, tensors: Tensors) -> list[Any]:
        those, others = iter(tensors), iter(self._others)
        return [next(those) if is_tensor else next(others) for is_tensor in self._is_tensor]

    def _random_state(self) -> Tensors:
        states = [torch.get_rng_state()]
        if self.device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self.device))
        return states

    @contextmanager
    def _same_draws(self) -> Iterator[None]:
        if not self.random:
            yield
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.set_rng_state(self._state[0])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self._state[1], self.device)
            yield


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def float_outputs(output: Any) -> Tensors:
    """The floating-point tensors of whatever a module returned."""
    return [leaf for leaf in tree_flatten(output)[0] if _is_float(leaf)]


def vjp(outs: Tensors, wanted: Tensors, gys: Tensors, *, keep: bool = False) -> Tensors:
    """Gradients of the outputs, weighted by ``gys``; zero where nothing depends on an input."""
    pairs = [(o, g) for o, g in zip(outs, gys, strict=True) if o.requires_grad]
    if not pairs:
        return [torch.zeros_like(t) for t in wanted]
    used, upstream = zip(*pairs, strict=True)
    found = torch.autograd.grad(used, wanted, upstream, retain_graph=keep, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]
