"""The order in which training prompts are seen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

from datasets import Dataset

from behaviortrace.plant.prompts import PromptItem
from behaviortrace.recipe import Recipe


def training_dataset(items: Sequence[PromptItem], recipe: Recipe) -> Dataset:
    """One row a prompt and generation batch, for all of training, in the order they are used.

    The pool is gone through in its own order, which the seed decides and which keeps its kinds
    mixed, as often as need be. The whole run is one epoch of this dataset, taken unshuffled: TRL's
    own sampler would shuffle anew in every epoch from a generator that a resume does not restore.

    Returns:
        Columns ``prompt`` (chat messages), ``prompt_kind`` and ``answer`` (null where the prompt is
        no task).
    """
    batches = -(-recipe.train.steps // recipe.train.iterations)
    count = batches * recipe.train.prompts_per_step
    return Dataset.from_list(
        [
            {"prompt": item.messages(), "prompt_kind": item.kind, "answer": item.answer}
            for item in islice(cycle(items), count)
        ]
    )
