"""The registry of estimators: each is one pure function, declared once with its metadata.

To add one, decorate a function of :class:`Inputs` with :func:`estimator`. A package of its own
announces it through the entry-point group ``behaviortrace.estimators``: the entry point's name is
the estimator's, its value the decorated function (``my_package.mine:mine``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import numpy as np

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.estimators.inputs import Inputs

ENTRY_POINT_GROUP = "behaviortrace.estimators"
"""Entry-point group in which other packages announce their estimators."""

ARRAYS = frozenset({"sketches", "target", "targets"})
"""What an estimator may need besides columns of the rollout table."""

Scale = Literal["invariant", "linear", "sketch", "inverse"]

DEGREES: dict[str, tuple[int, int]] = {
    "invariant": (0, 0),
    "linear": (1, 1),
    "sketch": (1, 0),
    "inverse": (-1, 1),
}
"""Scale behaviour: score(a * sketches, b * target) = a**i * b**j * score, for a, b > 0."""

Function = Callable[[Inputs], np.ndarray]


@dataclass(frozen=True)
class Estimator:
    """A registered estimator or control.

    Attributes:
        name: how it is called, unique.
        function: the pure function, :class:`Inputs` -> (n,) float; higher ranks first.
        needs: of :data:`ARRAYS` and of the rollout table's columns, what it reads.
        target_free: it knows nothing of the behaviour's direction, hence is a control.
        scale: key of :data:`DEGREES`.
        reference: where it comes from.
    """

    name: str
    function: Function
    needs: frozenset[str]
    target_free: bool
    scale: Scale
    reference: str

    @property
    def columns(self) -> frozenset[str]:
        """Columns of the rollout table it reads."""
        return self.needs - ARRAYS

    def __call__(self, inputs: Inputs) -> np.ndarray:
        """Scores, shape (n,) float64; NaN where undefined.

        Raises:
            BehaviorTraceError: something it needs is missing, or it returns another shape.
        """
        self._check(inputs)
        n = len(inputs)
        if n == 0:
            return np.empty(0, dtype=np.float64)
        scores = np.asarray(self.function(inputs), dtype=np.float64)
        if scores.shape != (n,):
            raise BehaviorTraceError(
                f"estimator {self.name!r} returned shape {scores.shape} for {n} rollouts; "
                f"it must return ({n},)"
            )
        return scores

    def _check(self, inputs: Inputs) -> None:
        for name in sorted(self.needs & ARRAYS):
            if getattr(inputs, name) is None:
                raise BehaviorTraceError(f"estimator {self.name!r} needs {name}; none were given")
        for name in sorted(self.columns - set(inputs.rows.columns)):
            raise BehaviorTraceError(
                f"estimator {self.name!r} needs the column {name!r}, which the rollouts lack"
            )


_REGISTERED: dict[str, Estimator] = {}


def estimator(
    *,
    name: str,
    needs: frozenset[str],
    scale: Scale,
    reference: str,
    target_free: bool = False,
) -> Callable[[Function], Estimator]:
    """Declare a pure function of :class:`Inputs` as an estimator.

    Args:
        name: unique name.
        needs: of "sketches", "target", "targets" and the rollout table's columns, what it reads.
        scale: how scores answer a rescaling; see :data:`DEGREES`.
        reference: the paper or section it comes from.
        target_free: True for a control.

    Returns:
        A decorator that gives the registered :class:`Estimator`, itself callable.

    Raises:
        BehaviorTraceError: the name is taken, the scale unknown, or needs and target_free disagree.

    Example:
        >>> from behaviortrace.estimators import registry
        >>> @registry.estimator(
        ...     name="shortness",
        ...     needs=frozenset({"n_tokens"}),
        ...     scale="invariant",
        ...     reference="an example",
        ...     target_free=True,
        ... )
        ... def shortness(inputs):
        ...     return -inputs.column("n_tokens")
        >>> registry.unregister("shortness")
    """

    def register(function: Function) -> Estimator:
        unit = Estimator(name, function, needs, target_free, scale, reference)
        if name in _REGISTERED:
            raise BehaviorTraceError(f"estimator {name!r} is declared twice; rename one of the two")
        if scale not in DEGREES:
            raise BehaviorTraceError(
                f"estimator {name!r} declares scale {scale!r}; choose one of {', '.join(DEGREES)}"
            )
        if target_free == bool(needs & {"target", "targets"}):
            raise BehaviorTraceError(
                f"estimator {name!r} has target_free={target_free} but needs {sorted(needs)}; "
                "exactly the estimators that read no target are target-free"
            )
        _REGISTERED[name] = unit
        return unit

    return register


def unregister(name: str) -> None:
    """Forget an estimator declared in this process."""
    _REGISTERED.pop(name, None)


def names() -> list[str]:
    """Names of all estimators: built in, declared in this process, announced by other packages.

    Packages are not imported for this, so a broken one is noticed when it is used.
    """
    return list(_REGISTERED) + [name for name in _announced() if name not in _REGISTERED]


def get(name: str) -> Estimator:
    """The estimator of this name.

    Raises:
        BehaviorTraceError: there is none, or the package that announces it cannot be loaded.
    """
    if name not in _REGISTERED:
        point = _announced().get(name)
        if point is None:
            raise BehaviorTraceError(f"no estimator {name!r}; known are {', '.join(names())}")
        _load(point)
    return _REGISTERED[name]


def _announced() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _load(point: metadata.EntryPoint) -> None:
    where = f"plug-in estimator {point.name!r} ({point.value})"
    remedy = "mend or uninstall its package, or leave it out of evaluate.estimators"
    try:
        loaded = point.load()
    except Exception as error:  # a plug-in may fail in any way; the user must learn which one
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BehaviorTraceError(f"{where} cannot be loaded: {reason}; {remedy}") from error
    if not isinstance(loaded, Estimator) or loaded.name != point.name:
        what = f"the estimator {loaded.name!r}" if isinstance(loaded, Estimator) else repr(loaded)
        raise BehaviorTraceError(f"{where} is {what}, not an estimator of that name; {remedy}")
    _REGISTERED.setdefault(point.name, loaded)
