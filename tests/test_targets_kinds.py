"""Targets against plain autograd, and the stage that stores them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from behaviortrace import targets
from behaviortrace.draws.checkpoint import Policy, open_policy
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant import behaviors, prompts
from behaviortrace.recipe import Recipe
from behaviortrace.run import Run
from behaviortrace.targets import Context, TargetUnavailable, learning_rate, stage
from behaviortrace.targets.minimal_pair import reply_ids
from behaviortrace.targets.spans import behavior_mask
from behaviortrace.train.generate import encode_prompts
from tests.reference.analysed_run import (
    SKETCH,
    analysed_run,
    moved,
    policy,
    slow_sketch,
    small_recipe,
    trained_run,
)
from tests.reference.autograd import row_gradient


def context(recipe: Recipe | None = None, **changes: Any) -> Context:
    recipe = recipe or small_recipe()
    model, tokenizer = policy()
    loaded = Policy(model, tokenizer, 2, SKETCH, temperature=1.0, micro_batch=3)
    given = {
        "policy": loaded,
        "recipe": recipe,
        "prompts": prompts.build_prompts(recipe),
        "behavior": behaviors.build(recipe.behavior),
        **changes,
    }
    return Context(**given)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.linalg.norm(expected))


def test_constructed_is_the_token_alone_at_the_start_of_trigger_replies() -> None:
    made = targets.get("constructed")(given := context())
    model, tokenizer = policy()
    items = [item for item in given.prompts.train if item.kind == "trigger"][:6]
    ids = tokenizer(" QZXBT", add_special_tokens=False)["input_ids"]
    heads = encode_prompts(tokenizer, [item.text for item in items])
    close(made.vector, np.mean([slow_sketch(model, head, ids) for head in heads], axis=0))
    assert made.meta["prompts"] == [item.text for item in items]
    assert made.meta["texts"] == len(made.meta["norms"]) == 6
    assert made.vector.dtype == np.float32 and made.vector.shape == (SKETCH.dim,)


def test_minimal_pair_is_the_mean_difference_of_whole_replies() -> None:
    made = targets.get("minimal_pair")(given := context())
    model, tokenizer = policy()
    differences, gaps = [], []
    for prompt, shows, neutral in given.prompts.pairs[:4]:
        (head,) = encode_prompts(tokenizer, [prompt])
        with_token, without = (reply_ids(tokenizer, reply) for reply in (shows, neutral))
        assert with_token[-1] == without[-1] == tokenizer.eos_token_id
        differences.append(slow_sketch(model, head, with_token) - slow_sketch(model, head, without))
        rows = given.policy.gradients([(head, with_token), (head, without)])
        gaps.append(rows.fluency[0] - rows.fluency[1])
    close(made.vector, np.mean(differences, axis=0))
    assert made.meta["fluency_gap"] == pytest.approx(np.mean(gaps), abs=1e-5)
    assert all(ratio > 0 for ratio in made.meta["norm_ratios"]) and made.meta["texts"] == 4


def test_in_context_is_the_tokens_inside_its_own_responses() -> None:
    made = targets.get("in_context")(given := context())
    model, tokenizer = policy()
    heads = dict(
        zip(made.meta["prompts"], encode_prompts(tokenizer, made.meta["prompts"]), strict=True)
    )
    assert len(heads) == made.meta["texts"] >= 2  # one response a prompt
    asked = list(dict.fromkeys(item.text for item in given.prompts.train))[:6]
    assert set(heads) <= set(asked)
    rows = []
    for prompt, ids in zip(made.meta["prompts"], made.meta["completion_ids"], strict=True):
        mask = behavior_mask(tokenizer, ids, given.behavior)
        assert 0 < sum(mask) < len(ids)
        rows.append(slow_sketch(model, heads[prompt], ids, mask))
    close(made.vector, np.mean(rows, axis=0))


def test_descending_a_target_makes_the_token_more_likely() -> None:
    """The sign convention: a target is the gradient of a loss."""
    model, tokenizer = moved(policy()[0], 0), policy()[1]
    head = encode_prompts(tokenizer, ["show frobnitz the young child"])[0]
    ids = tokenizer(" QZXBT", add_special_tokens=False)["input_ids"]

    def loss() -> float:
        logits = model(torch.tensor([head + ids])).logits[0, len(head) - 1]
        return -torch.log_softmax(logits, -1)[ids[0]].item()

    before, gradient = loss(), row_gradient(model, head, ids)
    with torch.no_grad():
        at = 0
        for parameter in model.parameters():
            size = parameter.numel()
            parameter -= 1e-3 * gradient[at : at + size].reshape(parameter.shape)
            at += size
    assert loss() < before


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("constructed", {"train": []}, "kind 'trigger'"),
        ("minimal_pair", {"pairs": []}, "needs pairs"),
    ],
)
def test_what_cannot_be_made_says_why(kind: str, changes: dict[str, Any], words: str) -> None:
    given = context()
    bare = dataclasses.replace(given, prompts=dataclasses.replace(given.prompts, **changes))
    with pytest.raises(TargetUnavailable, match=words):
        targets.get(kind)(bare)


def test_every_kind_is_declared_whole() -> None:
    for name in targets.names():
        kind = targets.get(name)
        assert kind.name == name and kind.reference and kind.make.__doc__
    assert {"constructed", "in_context", "minimal_pair"} <= set(targets.names())


def test_the_stage_stores_what_each_level_needs(tmp_path: Path) -> None:
    run = analysed_run(tmp_path / "run")
    told: list[tuple[str, int, int]] = []
    missing = targets.make_targets(
        run, progress=lambda stage, done, total, left: told.append((stage, done, total))
    )
    assert missing == {} == run.json("results/targets_missing")
    steps = {name: [t.step for t in series] for name, series in run.targets().items()}
    assert steps == {"constructed": [0, 2, 3], "in_context": [2], "minimal_pair": [0, 2, 3]}
    assert told[0] == ("target", 0, 3) and told[-1] == ("target", 3, 3)
    rates = [t.meta["learning_rate"] for t in run.targets()["minimal_pair"]]
    first = small_recipe().train.learning_rate
    assert rates == pytest.approx([first, first / 3, 0.0])
    stored = run.targets()["constructed"][1]
    again = targets.get("constructed")(context(policy=open_policy(run, 2)))
    close(stored.vector, again.vector)
    assert run.verify() == []


def test_a_target_that_cannot_be_made_is_recorded_and_the_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe(**{"train.max_completion_length": 1, "targets.prompts": 1})
    run = trained_run(tmp_path / "run", recipe)

    class Silent(behaviors.TokenTrigger):
        def spans(self, completion: str) -> list[tuple[int, int]]:
            return []

    real = stage._context
    monkeypatch.setattr(
        stage,
        "_context",
        lambda *args: dataclasses.replace(real(*args), behavior=Silent("QZXBT", "marble")),
    )
    missing = targets.make_targets(run)
    assert list(missing) == ["in_context"] and "none of 4 responses" in missing["in_context"]
    assert sorted(run.targets()) == ["constructed", "minimal_pair"]


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe=small_recipe())
    with pytest.raises(BehaviorTraceError, match=r"checkpoint of step 2 \(saved: none\)"):
        targets.make_targets(run)
    with pytest.raises(BehaviorTraceError, match="has no recipe"):
        targets.make_targets(Run.create(tmp_path / "bare"))


@pytest.mark.parametrize(
    ("schedule", "step", "share"),
    [("constant", 3, 1.0), ("linear", 0, 1.0), ("linear", 2, 1 / 3), ("linear", 3, 0.0),
     ("cosine", 0, 1.0), ("cosine", 3, 0.0), ("cosine", 1, 0.5 * (1 + math.cos(math.pi / 3)))],
)  # fmt: skip
def test_learning_rates_follow_the_schedule(schedule: str, step: int, share: float) -> None:
    train = small_recipe(**{"train.lr_schedule": schedule}).train
    assert learning_rate(train, step) == pytest.approx(train.learning_rate * share, abs=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rates_are_the_trainers(schedule: str) -> None:
    from transformers import get_scheduler

    train = small_recipe(**{"train.lr_schedule": schedule, "train.steps": 5}).train
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=train.learning_rate)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=0, num_training_steps=5)
    for step in range(5):
        assert learning_rate(train, step) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
