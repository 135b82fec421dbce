"""Modules whose parameters no rule of capture knows, with rows apart or mixed."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

WIDTH = 16


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(1 + 0.3 * torch.randn(shape))


class Around(nn.Module):
    """What comes after a module inside a layer: the module, then something of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Scale(Around):
    """An elementwise factor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.factor = _parameter(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.factor


class LayerScale(Around):
    """A gated residual around a whole MLP, whose own parameters keep their rules."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.gates = nn.ParameterDict({"gate": _parameter(), "scale": _parameter(WIDTH)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gates["scale"] * torch.tanh(self.gates["gate"]) * self.inner(x)


class Nonlinear(Around):
    """A parameter used nonlinearly, and twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.a, self.b = _parameter(WIDTH), _parameter(1, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * torch.sigmoid(self.a) + torch.tanh(self.b) + 0.1 * self.a**2


class ShortConvolution(Around):
    """A causal depthwise convolution over positions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).transpose(1, 2)
        return self.conv(y)[..., : x.shape[1]].transpose(1, 2)


class Dropping(Around):
    """Dropout before a weight of its own: rows' gradients hang on the draws."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.gain = nn.Parameter(torch.eye(WIDTH) + 0.1 * torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.inner(x), 0.3, self.training) @ self.gain


class ChangedLater(Around):
    """Its output is changed in place by what follows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.scale = Scale(nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.inner(x)).add_(x)


class Named(Around):
    """Called by name, with a tuple in and a dictionary out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.pair = Pair()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.pair(both=(self.inner(x), x), ids=torch.arange(x.shape[1]))
        return found["sum"] + found["rest"][0]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = _parameter(WIDTH), _parameter(WIDTH)

    def forward(self, *, both: tuple[torch.Tensor, torch.Tensor], ids: torch.Tensor) -> dict:
        y, x = both
        places = torch.cos(ids.to(x.dtype))[:, None]
        return {"sum": y * self.left + places * self.right, "rest": [x * self.right], "ids": ids}


class Shared(Around):
    """One parameter that two modules use in different ways."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.first, self.second = Scale(nn.Identity()), Shift()
        self.second.shift = self.first.factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.inner(x)))


class Shift(nn.Module):
    shift: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sin(self.shift)


class BatchNormed(Around):
    """The batch norm of every channel over rows and positions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.inner(x).transpose(1, 2)).transpose(1, 2)


class Centred(Around):
    """What it takes away is the mean of all rows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.factor = _parameter(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return (y - y.mean((0, 1))) * self.factor


class SecretlyCoupled(Around):
    """Values of a row are its own; only gradients pass between rows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.factor = _parameter(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) * self.factor
        return y + (y.mean(0, keepdim=True) - y.mean(0, keepdim=True).detach())


class Capacity(Around):
    """Takes a quarter of the micro-batch's tokens, whichever rows they are in."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.expert = nn.Parameter(torch.eye(WIDTH) + 0.1 * torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        score = y[..., 0].flatten()
        kept = torch.zeros_like(score)
        kept[score.topk(max(1, len(score) // 4)).indices] = 1
        return y + kept.view(*y.shape[:-1], 1) * (y @ self.expert)


class DroppingCentred(Centred):
    """The same with dropout, so that it cannot be run one row at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x), 0.1, self.training)


class Folded(Around):
    """Its scale sees rows and positions as one axis."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.scale = Scale(nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.inner(x).flatten(0, 1)).view(x.shape)


class Permuted(Folded):
    """Its scale sees positions first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.inner(x).transpose(0, 1)).transpose(0, 1)


class Reaching(Around):
    """It uses the weight of a module without running it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.inner(x), self.linear.weight)


class Borrowing(Around):
    """It runs a module, and uses its parameter beside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.scale = Scale(nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.inner(x)) + 0.5 * self.scale.factor


class Counting(Around):
    """It changes a buffer as it runs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.factor = _parameter(WIDTH)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) * self.factor


class Erratic(Around):
    """It draws from a generator that torch does not know of."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.factor = _parameter(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.factor * (1 + random.random())


SEPARABLE: dict[str, Callable[[nn.Module], nn.Module]] = {
    "scale": Scale,
    "layer scale": LayerScale,
    "nonlinear": Nonlinear,
    "depthwise convolution": ShortConvolution,
    "dropout inside": Dropping,
    "changed in place later": ChangedLater,
    "nested arguments": Named,
    "shared in different ways": Shared,
}

REFUSED: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "batch norm": (BatchNormed, r"mlp\.norm: a batch norm in training mode"),
    "mean over rows": (Centred, r"mlp: it mixes rows: row \d of its output changes by \d"),
    "with dropout": (DroppingCentred, r"mlp: it mixes rows: row \d of its output changes by \d"),
    "gradients alone": (SecretlyCoupled, r"mlp: the gradients of its rows.* differ .* by \d"),
    "routing with a capacity": (Capacity, r"mlp: it mixes rows: row \d of its output"),
    "folded rows": (Folded, r"mlp\.scale: no input of it has the 4 rows"),
    "positions first": (Permuted, r"mlp\.scale: no input of it has the 4 rows"),
    "weight without its module": (Reaching, r"all of the gradient of '.*mlp\.linear\.weight'"),
    "parameter used beside": (Borrowing, r"\d% of the gradient of '.*mlp\.scale\.factor'"),
    "changed buffer": (Counting, r"mlp: it changes its input, buffers or parameters in place"),
    "other random numbers": (Erratic, r"mlp: run again .* its output is another"),
}
