"""What an estimator is given."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.estimators import algebra


@dataclass(frozen=True)
class Inputs:
    """Rollouts to be scored, and the target to score them against. Nothing in it is changed.

    Attributes:
        rows: the rollout table, n rows.
        sketches: (n, dim) float32, one a row; may be a memory map. NaN rows have no sketch.
        target: (dim,), gradient of the behaviour's loss at the analysed checkpoint.
        targets: (C, dim), the same target at C checkpoints.
        learning_rates: (C,), learning rate at each of these checkpoints.
        exact_norms: (n,), norms of the gradients themselves, where they are known.
        seed: of the random control.

    Raises:
        BehaviorTraceError: the shapes disagree.
    """

    rows: pl.DataFrame
    sketches: np.ndarray | None = None
    target: np.ndarray | None = None
    targets: np.ndarray | None = None
    learning_rates: np.ndarray | None = None
    exact_norms: np.ndarray | None = None
    seed: int = 0
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        n = self.rows.height
        if self.sketches is not None:
            _shape("sketches", self.sketches, (n, None))
        dim = None if self.sketches is None else self.sketches.shape[1]
        if self.target is not None:
            _shape("target", self.target, (dim,))
        if (self.targets is None) != (self.learning_rates is None):
            raise BehaviorTraceError("targets and learning_rates must be given together")
        if self.targets is not None and self.learning_rates is not None:
            _shape("targets", self.targets, (None, dim))
            _shape("learning_rates", self.learning_rates, (self.targets.shape[0],))
        if self.exact_norms is not None:
            _shape("exact_norms", self.exact_norms, (n,))

    def __len__(self) -> int:
        """Number of rollouts n."""
        return self.rows.height

    def with_target(
        self,
        target: np.ndarray | None,
        targets: np.ndarray | None = None,
        learning_rates: np.ndarray | None = None,
    ) -> Inputs:
        """The same rollouts against another target; what was computed of them is kept."""
        return dataclasses.replace(
            self, target=target, targets=targets, learning_rates=learning_rates
        )

    def column(self, name: str) -> np.ndarray:
        """A column as (n,) float64, NaN where null."""
        return self.rows[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()

    def dots(self, vector: np.ndarray) -> np.ndarray:
        """Inner product of every sketch with a (dim,) vector, (n,) float64."""
        key = _key(vector)
        if key not in self._known:
            self.prepare([vector])
        return self._known[key]

    @property
    def sketch_norms(self) -> np.ndarray:
        """L2 norm of every sketch, (n,) float64."""
        if "norms" not in self._known:
            self.prepare([])
        return self._known["norms"]

    def prepare(self, vectors: Sequence[np.ndarray]) -> None:
        """Take the products with all these vectors in one pass over the sketches.

        Only a matter of speed: sketches may fill gigabytes, and each pass reads them all.
        """
        norms, dots = algebra.products(self._need_sketches(), list(vectors))
        self._known["norms"] = _frozen(norms)
        self._known.update(
            (_key(vector), _frozen(dot)) for vector, dot in zip(vectors, dots, strict=True)
        )

    def shared(self, name: str, compute: Callable[[np.ndarray], Any]) -> Any:
        """A costly function of the sketches alone, computed once for all targets."""
        if name not in self._known:
            self._known[name] = compute(self._need_sketches())
        return self._known[name]

    def _need_sketches(self) -> np.ndarray:
        if self.sketches is None:
            raise BehaviorTraceError("these inputs hold no sketches; give some")
        return self.sketches


def _key(vector: np.ndarray) -> tuple[str, bytes]:
    wide = np.ascontiguousarray(vector, dtype=np.float64)
    return "dots", hashlib.blake2b(wide.tobytes(), digest_size=16).digest()


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _shape(name: str, array: np.ndarray, expected: tuple[int | None, ...]) -> None:
    if array.ndim != len(expected) or any(
        want is not None and have != want for have, want in zip(array.shape, expected, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in expected)
        raise BehaviorTraceError(f"{name} has shape {array.shape}; expected ({wanted})")
