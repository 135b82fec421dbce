"""What is independent: the prompts, where a prompt is asked more than once.

A group is the rollouts of one prompt in one step or repeat, and pairs stay inside groups. But an
effect varies between prompts, and so groups of one prompt go astray together. The unit that is
resampled, and that a variance is taken over, is therefore all groups of a prompt: a cluster. Where
no prompt repeats, every group is a cluster of its own.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from behaviortrace.errors import BehaviorTraceError


def by_prompt(rollouts: pl.DataFrame) -> np.ndarray:
    """Cluster of each rollout: the first group that asked its prompt.

    Args:
        rollouts: n rows with ``group`` and ``prompt``; where the prompt is null the group stands
            alone.

    Returns:
        Shape (n,), int64.

    Example:
        >>> frame = pl.DataFrame({"group": [0, 1, 2], "prompt": ["why?", "how?", "why?"]})
        >>> by_prompt(frame).tolist()
        [0, 1, 0]
    """
    first = pl.col("group").min().over("prompt")
    alone = pl.col("prompt").is_null()
    found = rollouts.select(pl.when(alone).then("group").otherwise(first).cast(pl.Int64))
    return found.to_series().to_numpy()


def split_group(group: np.ndarray, cluster: np.ndarray) -> tuple[int, int] | None:
    """Two rows of one group that lie in different clusters; None where there are none.

    Args:
        group: shape (n,), sortable.
        cluster: shape (n,), sortable.
    """
    _, first, code = np.unique(np.asarray(group), return_index=True, return_inverse=True)
    strays = np.flatnonzero(np.asarray(cluster) != np.asarray(cluster)[first[code]])
    return (int(first[code[strays[0]]]), int(strays[0])) if len(strays) else None


def cluster_codes(group: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Cluster of each group, in sorted order of the groups; clusters are numbered as they appear.

    So numbered, clusters of one group each are numbered as the groups are, and give the very same
    resamples.

    Args:
        group: shape (n,), group of each row.
        cluster: shape (n,), cluster of each row.

    Returns:
        Shape (n_groups,), codes from 0 on.

    Raises:
        BehaviorTraceError: a group lies in several clusters.
    """
    group, cluster = np.asarray(group), np.asarray(cluster)
    rows = split_group(group, cluster)
    if rows is not None:
        one, other = cluster[list(rows)].tolist()
        raise split_error(group[rows[0]], one, other)
    _, first = np.unique(group, return_index=True)
    _, appears, code = np.unique(cluster[first], return_index=True, return_inverse=True)
    number = np.empty(len(appears), dtype=np.int64)
    number[np.argsort(appears)] = np.arange(len(appears))
    codes: np.ndarray = number[code]
    return codes


def split_error(group: object, one: object, other: object, where: str = "") -> BehaviorTraceError:
    """What to raise of a group that lies in two clusters.

    Args:
        group: its name.
        one: a cluster it lies in.
        other: another.
        where: the file and columns it was read from, to begin the message with.
    """
    return BehaviorTraceError(
        f"{where}group {group} lies in clusters {one!r} and {other!r}; pairs are formed inside "
        "groups, so give each group one cluster, such as its prompt"
    )
