"""What the replicates of a sweep say together: the place where seeds and draws are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from behaviortrace.checklist.evidence import Replicate


def summarise_replicates(replicates: Sequence[Replicate]) -> dict[str, Any]:
    """Compare the decisive results of all seeds and draws.

    The merged replicates of a sweep are handed on here and nowhere else; what is returned is
    printed, stored in the sweep's results and shown in its report.

    Args:
        replicates: the decisive rollout-level result of every draw of every run.

    Returns:
        ``replicates`` and ``separating``, their numbers; ``mean_auc`` over all, and
        ``mean_auc_by_seed`` over the draws of each seed. A mean is None where there is none.
    """
    seeds = sorted({replicate.seed for replicate in replicates})
    return {
        "replicates": len(replicates),
        "separating": sum(replicate.separates for replicate in replicates),
        "mean_auc": _mean([r.auc for r in replicates]),
        "mean_auc_by_seed": {
            str(seed): _mean([r.auc for r in replicates if r.seed == seed]) for seed in seeds
        },
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
