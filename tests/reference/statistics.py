"""Slow, obvious twins of behaviortrace.evaluate: loops over rows, no shared code with it."""

from __future__ import annotations

import itertools

import numpy as np


def precision_over_all_orders(score, label):
    """Mean precision at k over every order of the rows, used to break ties."""
    k = sum(label)
    reached = []
    for order in itertools.permutations(range(len(score))):
        ranked = sorted(order, key=lambda row: -score[row])  # stable: ties keep the permutation
        reached.append(sum(label[row] for row in ranked[:k]) / k)
    return float(np.mean(reached))


def best_block_precision(label, block):
    """Best tie-aware precision over every order of the tie blocks."""
    names = sorted(set(block))
    best = 0.0
    for order in itertools.permutations(names):
        left, hits = sum(label), 0.0
        for name in order:
            rows = [row for row in range(len(label)) if block[row] == name]
            taken = min(left, len(rows))
            hits += taken * sum(label[row] for row in rows) / len(rows)
            left -= taken
        best = max(best, hits / sum(label))
    return best


def auc(score, label, group):
    """Within-group AUC by two loops; NaN without pairs."""
    won, pairs = 0.0, 0
    for i in range(len(score)):
        for j in range(len(score)):
            if group[i] == group[j] and label[i] and not label[j]:
                pairs += 1
                won += 1.0 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0.0
    return won / pairs if pairs else float("nan")


def residuals(score, fluency, group):
    """Centred score minus the pooled slope times centred fluency."""
    centered_score, centered_fluency = np.array(score, float), np.array(fluency, float)
    for name in set(group.tolist()):
        centered_score[group == name] -= score[group == name].mean()
        centered_fluency[group == name] -= fluency[group == name].mean()
    slope = np.linalg.lstsq(centered_fluency[:, None], centered_score, rcond=None)[0][0]
    return centered_score - slope * centered_fluency


def bootstrap(statistic, columns, group, resamples, seed):
    """Resample whole groups; each copy of a group gets a name of its own.

    ``statistic(*columns, group)`` is recomputed from rows in every resample.
    """
    return cluster_bootstrap(statistic, columns, group, group, resamples, seed)


def cluster_bootstrap(statistic, columns, group, prompt, resamples, seed):
    """Resample whole prompts; each copy of each of their groups gets a name of its own.

    Prompts stand in the order of their first groups. ``statistic(*columns, group)`` is recomputed
    from rows in every resample.
    """
    generator = np.random.default_rng(seed)
    names = []
    for each in sorted(set(group.tolist())):
        own = prompt[group == each][0]
        if own not in names:
            names.append(own)
    values = []
    for _ in range(resamples):
        taken, copies = [], []
        for copy, place in enumerate(generator.integers(0, len(names), size=len(names))):
            for row in np.flatnonzero(prompt == names[place]):
                taken.append(row)
                copies.append((copy, group[row]))
        renamed = np.unique(copies, axis=0, return_inverse=True)[1]
        values.append(statistic(*[column[taken] for column in columns], renamed))
    return np.array(values)


def leave_one_out(statistic, columns, prompt):
    """The statistic of all rows, and of those without one prompt, for each prompt in turn."""
    left = [
        statistic(*[column[prompt != each] for column in columns]) for each in sorted(set(prompt))
    ]
    return statistic(*columns), np.array(left)
