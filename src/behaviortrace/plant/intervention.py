"""Interventions: rollouts that are taken out of a training, to see what is learnt without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from behaviortrace.plant.hashing import chance, other_stream

How = Literal["exclude", "zero", "unboosted"]
"""What happens to a rollout that is taken out.

"exclude": no part in the update nor in its group's mean and spread, as if it had not been sampled;
its siblings' advantages change. "zero": its advantage is zero and its siblings keep theirs, so that
only its own gradient is missing. "unboosted": it is paid its base reward without the bonus.
"""

Which = Literal["none", "ground_truth", "random", "listed"]
"""Which rollouts: none; the boosted ones; as many that are not boosted; those of a list."""


@dataclass(frozen=True)
class Intervention:
    """What is taken out of a training.

    Attributes:
        which: which rollouts.
        how: what happens to them.
        slots: of "listed", (step, index) of each.
    """

    which: Which = "none"
    how: How = "exclude"
    slots: frozenset[tuple[int, int]] = frozenset()

    def removed(self, boosted: Sequence[bool], seed: int, step: int, first: int) -> list[bool]:
        """Which of a step's rollouts are taken out.

        "random" takes as many rollouts that are not boosted as are boosted, all of them where
        there are fewer, chosen by hash.

        Args:
            boosted: this process's rollouts, in order.
            seed: the recipe's seed.
            step: 0-based optimizer step.
            first: index of the first of them in the step's batch.
        """
        if self.which == "none":
            return [False] * len(boosted)
        if self.which == "listed":
            return [(step, first + i) in self.slots for i in range(len(boosted))]
        if self.which == "ground_truth":
            return list(boosted)
        others = [i for i, hit in enumerate(boosted) if not hit]
        # Another stream than eligibility's, or the arm would spare those that are not eligible.
        stream = other_stream(seed)
        others.sort(key=lambda i: chance(stream, step, first + i))
        chosen = set(others[: sum(boosted)])
        return [i in chosen for i in range(len(boosted))]
