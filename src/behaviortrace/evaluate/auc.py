"""Within-group AUC: does a score rank a rollout that shows the behaviour above a sibling?

Source: the paper's section 3.5. Pairs are formed inside groups only, so nothing that differs
between prompts or steps can lift the AUC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from behaviortrace.errors import BehaviorTraceError

MAX_PAIRS = 10_000_000
"""More pairs than this are refused: groups are rollouts of one prompt, hence small."""


@dataclass(frozen=True)
class Pairs:
    """All (shows, does not show) pairs inside groups.

    Attributes:
        shows: shape (pairs,), row number of the member that shows the behaviour.
        lacks: shape (pairs,), row number of the sibling that does not.
        group: shape (pairs,), group code of the pair, in ``range(n_groups)``.
        n_groups: number of groups, those without a pair included.
        cluster_of: shape (n_groups,), code of the cluster each group lies in, from 0 on: what is
            independent. As :func:`~behaviortrace.evaluate.clusters.cluster_codes` gives them.
    """

    shows: np.ndarray
    lacks: np.ndarray
    group: np.ndarray
    n_groups: int
    cluster_of: np.ndarray

    @property
    def n_clusters(self) -> int:
        """Number of clusters, those without a pair included."""
        return int(self.cluster_of.max(initial=-1)) + 1

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.group)

    def difference(self, values: np.ndarray) -> np.ndarray:
        """Value of the member that shows the behaviour minus its sibling's, shape (pairs,)."""
        return values[self.shows] - values[self.lacks]

    def per_group(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Sum of the pairs' weights (1 each by default) in each group, shape (n_groups,)."""
        return np.bincount(self.group, weights=weights, minlength=self.n_groups).astype(np.float64)

    def per_cluster(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Sum of the pairs' weights (1 each by default) in each cluster, shape (n_clusters,)."""
        cluster, n = self.cluster_of[self.group], self.n_clusters
        return np.bincount(cluster, weights=weights, minlength=n).astype(np.float64)

    def keep(self, mask: np.ndarray) -> Pairs:
        """The pairs where ``mask``, shape (pairs,), holds; the groups stay all."""
        shows, lacks, group = (each[mask] for each in (self.shows, self.lacks, self.group))
        return Pairs(shows, lacks, group, self.n_groups, self.cluster_of)


def group_codes(group: np.ndarray) -> tuple[np.ndarray, int]:
    """Groups as codes 0..n-1, in sorted order of their values, and their number n."""
    values, code = np.unique(np.asarray(group), return_inverse=True)
    return code, len(values)


def within_group_pairs(
    label: np.ndarray, code: np.ndarray, n_groups: int, cluster_of: np.ndarray | None = None
) -> Pairs:
    """Every pair of a positive and a negative row that share a group.

    Args:
        label: shape (n,), bool; True where the rollout shows the behaviour.
        code: shape (n,), group codes in ``range(n_groups)``, as :func:`group_codes` gives them.
        n_groups: number of groups.
        cluster_of: shape (n_groups,), cluster of each group; each its own where None.

    Returns:
        The pairs, ordered by group; none where no group holds both labels.

    Raises:
        BehaviorTraceError: more than ``MAX_PAIRS`` pairs.
    """
    label = np.asarray(label, dtype=bool)
    positive, negative = np.flatnonzero(label), np.flatnonzero(~label)
    positive = positive[np.argsort(code[positive], kind="stable")]
    negative = negative[np.argsort(code[negative], kind="stable")]
    n_negative = np.bincount(code[negative], minlength=n_groups)
    partners = n_negative[code[positive]]  # siblings each positive row is paired with
    total = int(partners.sum())
    if total > MAX_PAIRS:
        raise BehaviorTraceError(
            f"{n_groups} groups of {len(label)} rows hold {total} pairs, above the limit of "
            f"{MAX_PAIRS}; give as group the rollouts of one prompt in one step"
        )
    first = np.cumsum(n_negative) - n_negative  # where a group's negatives start
    within = np.arange(total) - np.repeat(np.cumsum(partners) - partners, partners)
    shows = np.repeat(positive, partners)
    lacks = negative[np.repeat(first[code[positive]], partners) + within]
    own = np.arange(n_groups) if cluster_of is None else cluster_of
    return Pairs(shows, lacks, code[shows], n_groups, own)


def credit(difference: np.ndarray, tolerance: np.ndarray | float = 0.0) -> np.ndarray:
    """1 for a difference above the tolerance, 0 below minus the tolerance, 1/2 for a tie.

    The AUC is the mean credit over pairs.

    Example:
        >>> credit(np.array([0.3, 0.0, -0.1])).tolist()
        [1.0, 0.5, 0.0]
    """
    return np.where(difference > tolerance, 1.0, np.where(difference < -tolerance, 0.0, 0.5))
