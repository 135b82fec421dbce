"""The trigger tokens, where they occur in the model's own responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from behaviortrace.draws.checkpoint import derived_seed
from behaviortrace.records import Target
from behaviortrace.targets.registry import Context, TargetUnavailable, mean_direction, target
from behaviortrace.targets.spans import behavior_mask

if TYPE_CHECKING:
    from behaviortrace.train.generate import Sample

ATTEMPTS = 4
"""Completions sampled a prompt; the first that shows the behaviour is taken."""


@target(
    name="in_context",
    each_checkpoint=False,
    reference="the paper, section 3.4 and pitfall P4",
)
def in_context(context: Context) -> Target:
    """Gradient of minus the mean log-probability of the behaviour's tokens inside responses.

    The responses are sampled for this target alone, one for each of up to ``targets.prompts``
    training prompts, so it contains none of the rollouts it is compared with.

    Raises:
        TargetUnavailable: no sampled response shows the behaviour.
    """
    policy, behavior = context.policy, context.behavior
    samples, asked = _responses(context)
    if not samples:
        raise TargetUnavailable(
            f"target 'in_context' found the behaviour in none of {ATTEMPTS} responses to each of "
            f"{asked} training prompts at checkpoint {policy.step}"
        )
    masks = [behavior_mask(policy.tokenizer, s.completion_ids, behavior) for s in samples]
    replay = policy.gradients([(s.prompt_ids, s.completion_ids) for s in samples], masks)
    meta = {
        "texts": len(samples),
        "asked": asked,
        "prompts": [s.prompt for s in samples],
        "completions": [s.completion for s in samples],
        "completion_ids": [s.completion_ids for s in samples],
        "tokens": [sum(mask) for mask in masks],
        "norms": replay.norms.tolist(),
        "fluency": replay.fluency.tolist(),
    }
    vector = mean_direction(replay.plain, "in_context")
    return Target("in_context", "in_context", policy.step, vector, meta)


def _responses(context: Context) -> tuple[list[Sample], int]:
    """One response that shows the behaviour for each prompt that gave one, and prompts asked."""
    recipe, policy = context.recipe, context.policy
    prompts = [item.text for item in context.prompts.without_tasks()][: recipe.targets.prompts]
    samples = policy.sample(prompts, ATTEMPTS, recipe, seed=derived_seed("in_context", recipe.seed))
    found: dict[str, Sample] = {}
    for response in samples:
        mask = behavior_mask(policy.tokenizer, response.completion_ids, context.behavior)
        if any(mask):
            found.setdefault(response.prompt, response)
    return list(found.values()), len(prompts)
