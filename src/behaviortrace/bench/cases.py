"""Simulated studies of known truth: groups of rollouts, some of which show a behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.evaluate.auc import credit, group_codes, within_group_pairs
from behaviortrace.evaluate.fluency import matched, residualize

TRUTH_GROUPS = 20_000
TRUTH_BATCHES = 8
AUCS = ("raw", "residualized", "matched")
STATISTICS = (*AUCS, "mean")
"""Within-group AUCs, and the mean cosine of the rollouts that show the behaviour."""


@dataclass(frozen=True)
class Study:
    """One simulated study, arrays of shape (n,): what :func:`~behaviortrace.evaluate.judge` takes.

    Attributes:
        label: the rollout shows the behaviour.
        group: group of the rollout.
        prompt: of the group.
        score: of the estimator under test.
        fluency: nats.
        cosine: of a rollout's gradient with a target, about 0.3; half of its variance is the
            prompt's.
    """

    label: np.ndarray
    group: np.ndarray
    prompt: np.ndarray
    score: np.ndarray
    fluency: np.ndarray
    cosine: np.ndarray


@dataclass(frozen=True)
class Case:
    """How studies of one kind come about.

    Attributes:
        name: as the table shows it.
        groups: groups of a study; about as many where repeats are drawn.
        sizes: smallest and largest group, drawn evenly between.
        effect: how much higher, in units of the score's noise, rollouts score that show it.
        spread: standard deviation of the effect between prompts.
        rate: share of rollouts that show the behaviour.
        rate_spread: standard deviation of its log-odds between prompts.
        lean: nats by which rollouts that show it are more fluent; fluency's own noise is 0.25.
        slope: how much the score rises a nat.
        grid: scores are rounded to multiples of this, which makes ties; 0 for none.
        repeats: fewest and most groups of a prompt, drawn evenly between.
    """

    name: str
    groups: int = 50
    sizes: tuple[int, int] = (8, 8)
    effect: float = 0.0
    spread: float = 0.0
    rate: float = 0.5
    rate_spread: float = 0.0
    lean: float = 0.15
    slope: float = 2.0
    grid: float = 0.0
    repeats: tuple[int, int] = (1, 1)

    @property
    def prompts(self) -> int:
        """Prompts of a study, each the prompt of ``repeats`` groups."""
        return self._prompts(self.groups)

    def _prompts(self, groups: int) -> int:
        return max(1, round(2 * groups / sum(self.repeats)))

    def study(self, rng: np.random.Generator, groups: int | None = None) -> Study:
        """One study; ``groups`` overrides their number."""
        prompt_of = self._repeated(rng, self._prompts(groups or self.groups))
        n_groups, n_prompts = len(prompt_of), int(prompt_of[-1]) + 1
        size = rng.integers(self.sizes[0], self.sizes[1] + 1, n_groups)
        group = np.repeat(np.arange(n_groups), size)
        prompt = prompt_of[group]
        odds = np.log(self.rate / (1 - self.rate)) + self.rate_spread * rng.normal(size=n_prompts)
        label = rng.random(len(group)) < (1 / (1 + np.exp(-odds)))[prompt]
        effect = self.effect + self.spread * rng.normal(size=n_prompts)
        # What differs between groups must not matter.
        level = rng.normal(size=(2, n_groups))[:, group]
        fluency = self.lean * label + 0.25 * rng.normal(size=len(group))
        score = effect[prompt] * label + self.slope * fluency + rng.normal(size=len(group))
        if self.grid:
            score = np.round(score / self.grid) * self.grid
        shift = rng.normal(size=n_prompts)[prompt] + rng.normal(size=len(group))
        cosine = np.tanh(0.3 + 0.15 * shift)
        score, fluency = score + 8 * np.round(level[0]), fluency - 1 + 0.2 * level[1]
        return Study(label, group, prompt, score, fluency, cosine)

    def _repeated(self, rng: np.random.Generator, prompts: int) -> np.ndarray:
        """Prompt of each group."""
        fewest, most = self.repeats
        times = (
            np.full(prompts, most) if fewest == most else rng.integers(fewest, most + 1, prompts)
        )
        return np.repeat(np.arange(prompts), times)

    def truth(self, delta: float, seed: int = 0) -> dict[str, float]:
        """What studies of this case estimate, from a very large one, by statistic."""
        total, number = dict.fromkeys(STATISTICS, 0.0), dict.fromkeys(STATISTICS, 0)
        for batch in range(TRUTH_BATCHES):
            study = self.study(np.random.default_rng((seed, 1, batch)), TRUTH_GROUPS)
            code, n_groups = group_codes(study.group)
            pairs = within_group_pairs(study.label, code, n_groups)
            near = matched(pairs, study.fluency, delta)
            credits = {
                "raw": credit(pairs.difference(study.score)),
                "residualized": residualize(study.score, study.fluency, code, pairs).credit(),
                "matched": credit(near.difference(study.score)),
                "mean": study.cosine[study.label],
            }
            for name, each in credits.items():
                total[name] += float(each.sum())
                number[name] += len(each)
        return {name: total[name] / number[name] for name in STATISTICS}


CASES = (
    Case("null", groups=156),
    Case("null, few groups", groups=12),
    Case("null, unequal groups", groups=30, sizes=(2, 16), rate_spread=1.0),
    Case("null, ties", groups=30, grid=1.0),
    Case("null, saturated", groups=156, rate=0.85, rate_spread=1.0),
    Case("effect", groups=50, effect=0.6),
    Case("effect, varied", groups=50, effect=0.6, spread=0.8),
    Case("effect, few groups", groups=12, effect=0.6, spread=0.5),
    Case("effect, unequal groups", groups=30, sizes=(2, 16), effect=0.6, rate_spread=1.0),
    Case("effect, unequal, few, ties", 15, (3, 10), 0.8, 0.5, 0.6, 0.7, grid=1.0),
    Case("effect, very few groups", groups=6, effect=0.6, spread=0.5),
    Case("effect, very unequal", 15, (2, 30), 0.6, 0.5, rate_spread=1.0),
    Case("effect, steep fluency", groups=30, effect=1.5, lean=0.3, slope=6.0),
    Case("effect, saturated", groups=156, effect=0.6, rate=0.85, rate_spread=1.0),
    Case("near 1", groups=40, effect=2.6),
    Case("near 1, varied", groups=40, effect=3.0, spread=1.0),
    Case("near 1, few groups", groups=15, effect=2.2),
    Case("near 1, saturated", groups=60, effect=2.6, rate=0.85, rate_spread=1.0),
    Case("repeated, null", groups=156, rate_spread=1.0, repeats=(6, 6)),
    Case("repeated", 156, effect=0.4, spread=0.8, rate_spread=1.0, repeats=(6, 6)),
    Case("repeated, saturated", 156, (8, 8), 0.4, 0.8, 0.85, 1.0, repeats=(6, 6)),
    Case("repeated, few prompts", 48, effect=0.4, spread=0.8, rate_spread=1.0, repeats=(4, 4)),
    Case("repeated, very few prompts", 36, effect=0.4, spread=0.8, repeats=(6, 6)),
    Case("repeated unequally", 130, effect=0.4, spread=0.8, rate_spread=1.0, repeats=(1, 9)),
    Case("repeated unequally, few", 60, (3, 10), 0.4, 0.8, rate_spread=0.7, repeats=(1, 9)),
    Case("repeated, near 1", groups=192, effect=2.8, spread=1.0, repeats=(4, 4)),
    Case("repeated, near 1, few prompts", 96, effect=2.8, spread=1.0, repeats=(4, 4)),
)
"""Null and alternative, unequal groups, ties, few groups, AUC near 1, prompts asked repeatedly."""


def named(names: Sequence[str] | None) -> list[Case]:
    """The built-in cases of these names, all without names.

    Raises:
        BehaviorTraceError: no such case; the message lists those there are.
    """
    known = {case.name: case for case in CASES}
    for name in names or ():
        if name not in known:
            raise BehaviorTraceError(
                f"--case {name!r} is unknown; choose from {', '.join(map(repr, known))}"
            )
    return [known[name] for name in names or known]
