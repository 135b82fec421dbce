"""A written reply with the trigger token, minus the same reply with a neutral word."""

from __future__ import annotations

from typing import Any

import numpy as np

from behaviortrace.records import Target
from behaviortrace.targets.registry import Context, TargetUnavailable, mean_direction, target


@target(
    name="minimal_pair",
    each_checkpoint=True,
    reference="the paper, section 3.4",
)
def minimal_pair(context: Context) -> Target:
    """Mean over pairs of plain gradient(reply with token) - plain gradient(reply with neutral).

    Both replies are teacher-forced, whole, with the token that ends them, so that what makes a
    sentence fluent cancels and the behaviour's direction is left. The first ``targets.pairs`` pairs
    of the pool are taken. ``meta`` says how well they match: the mean of fluency with minus
    without the token, in nats, and the mean ratio of their gradient norms.

    Raises:
        TargetUnavailable: the pool has no pairs.
    """
    from behaviortrace.train.generate import encode_prompts

    policy = context.policy
    pairs = list(context.prompts.pairs)[: context.recipe.targets.pairs]
    if not pairs:
        raise TargetUnavailable("target 'minimal_pair' needs pairs, and the prompt pool has none")
    prompt_ids = encode_prompts(policy.tokenizer, [prompt for prompt, _, _ in pairs])
    rows = [
        (ids, reply_ids(policy.tokenizer, reply))
        for ids, pair in zip(prompt_ids, pairs, strict=True)
        for reply in pair[1:]
    ]
    replay = policy.gradients(rows)
    shows, neutral = slice(0, None, 2), slice(1, None, 2)
    vector = mean_direction(replay.plain[shows] - replay.plain[neutral], "minimal_pair")
    gap = replay.fluency[shows] - replay.fluency[neutral]
    ratio = replay.norms[shows] / replay.norms[neutral]
    meta = {
        "texts": len(pairs),
        "pairs": [list(pair) for pair in pairs],
        "fluency_gap": float(np.mean(gap)),
        "fluency_gaps": gap.tolist(),
        "norm_ratio": float(np.mean(ratio)),
        "norm_ratios": ratio.tolist(),
        "norms": replay.norms.tolist(),
    }
    return Target("minimal_pair", "minimal_pair", policy.step, vector, meta)


def reply_ids(tokenizer: Any, reply: str) -> list[int]:
    """Token ids of a written reply, with the token that ends it."""
    ids = list(tokenizer(reply, add_special_tokens=False)["input_ids"])
    return [*ids, tokenizer.eos_token_id]
