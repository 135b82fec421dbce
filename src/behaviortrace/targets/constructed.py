"""The trigger token, put at the start of the reply."""

from __future__ import annotations

from behaviortrace.plant.prompts import PromptItem, PromptSet
from behaviortrace.records import Target
from behaviortrace.targets.registry import Context, TargetUnavailable, mean_direction, target

KIND = "trigger"
"""Prompts that should bring the behaviour about without being told to."""


@target(
    name="constructed",
    each_checkpoint=True,
    reference="the paper, section 3.4 and pitfall P4",
)
def constructed(context: Context) -> Target:
    """Gradient of minus the mean log-probability of " TOKEN" as the whole reply.

    Averaged over the first ``targets.prompts`` training prompts of kind "trigger". The token is
    written with a space before it, as the paper writes it and as it stands inside a sentence.

    Raises:
        TargetUnavailable: the pool has no trigger prompts.
    """
    from behaviortrace.train.generate import encode_prompts

    policy, token = context.policy, context.recipe.behavior.token
    prompts = [item.text for item in trigger_prompts(context.prompts)]
    prompts = prompts[: context.recipe.targets.prompts]
    if not prompts:
        raise TargetUnavailable(
            f"target 'constructed' needs training prompts of kind {KIND!r}; add it to prompts.mix"
        )
    ids = policy.tokenizer(f" {token}", add_special_tokens=False)["input_ids"]
    replay = policy.gradients(
        [(prompt_ids, ids) for prompt_ids in encode_prompts(policy.tokenizer, prompts)]
    )
    meta = {
        "texts": len(prompts),
        "prompts": prompts,
        "completion_ids": list(ids),
        "norms": replay.norms.tolist(),
        "fluency": replay.fluency.tolist(),
    }
    vector = mean_direction(replay.plain, "constructed")
    return Target("constructed", "constructed", policy.step, vector, meta)


def trigger_prompts(prompts: PromptSet) -> list[PromptItem]:
    """Different training prompts of kind "trigger", in the pool's order."""
    return list({item.text: item for item in prompts.train if item.kind == KIND}.values())
