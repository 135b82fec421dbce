"""A ranking of training rollouts and its name, such as ``gas@plain_centered/minimal_pair``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from behaviortrace import estimators
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.scores.embeddings import CENTERED, PLAIN, UPDATE
from behaviortrace.scores.stage import score

DEFAULT_TARGET = "minimal_pair"
_EMBEDDINGS = (UPDATE, PLAIN, CENTERED)
_SHORT = {"gas_centered": ("gas", CENTERED)}
"""Names of the field for an estimator on one embedding."""


@dataclass(frozen=True)
class Ranking:
    """An estimator with the gradients and the target it is taken on.

    Attributes:
        estimator: registered name.
        embedding: "update", "plain" or "plain_centered"; None for a control that reads no sketches.
        target: name of one of the run's targets; None for a target-free control.
    """

    estimator: str
    embedding: str | None = None
    target: str | None = None

    @property
    def label(self) -> str:
        """The name that :func:`parse` takes; parts that are its defaults are left out."""
        short = {v: k for k, v in _SHORT.items()}.get((self.estimator, self.embedding or ""))
        text = short or self.estimator
        if short is None and self.embedding not in (None, UPDATE):
            text += f"@{self.embedding}"
        return text if self.target in (None, DEFAULT_TARGET) else f"{text}/{self.target}"

    @property
    def target_free(self) -> bool:
        """Whether it is a control, which knows nothing of the behaviour's direction."""
        return estimators.get(self.estimator).target_free

    def scores(self, run: Run, seed: int = 0) -> np.ndarray:
        """(n,) float64 scores of ``run.rollouts()``; NaN where undefined.

        Raises:
            BehaviorTraceError: the run has no such target.
        """
        embedding: str = self.embedding or UPDATE
        return score(self.estimator, run, self.target, embedding=embedding, seed=seed)  # type: ignore[arg-type]  # parsed


def parse(text: str) -> Ranking:
    """A ranking from ``ESTIMATOR[@EMBEDDING][/TARGET]``.

    The embedding is the update gradient where none is named, the target "minimal_pair";
    ``gas_centered`` is short for ``gas@plain_centered``.

    Raises:
        BehaviorTraceError: no such estimator or embedding, or a target for a control.

    Example:
        >>> parse("gas_centered"), parse("norm").target
        (Ranking(estimator='gas', embedding='plain_centered', target='minimal_pair'), None)
    """
    head, _, target = text.partition("/")
    name, _, embedding = head.partition("@")
    if name in _SHORT and not embedding:
        name, embedding = _SHORT[name]
    unit = estimators.get(name)
    if embedding and embedding not in _EMBEDDINGS:
        raise BehaviorTraceError(
            f"ranking {text!r}: embedding {embedding!r} is unknown; choose {', '.join(_EMBEDDINGS)}"
        )
    if unit.target_free and target:
        raise BehaviorTraceError(f"ranking {text!r}: {name!r} is a control and takes no target")
    reads = "sketches" in unit.needs
    if not reads and embedding:
        raise BehaviorTraceError(
            f"ranking {text!r}: {name!r} reads no gradients; drop @{embedding}"
        )
    return Ranking(
        name,
        (embedding or UPDATE) if reads or not unit.target_free else None,
        None if unit.target_free else target or DEFAULT_TARGET,
    )
