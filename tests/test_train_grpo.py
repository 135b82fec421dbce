"""Training end to end on the tiny model: repeatable, killed anywhere, resumed exactly."""

import shutil

import polars as pl
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from behaviortrace import recipe as recipes
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.plant.emergence import s_b
from behaviortrace.plant.prompts import build_prompts
from behaviortrace.records import PROBE_SCHEMA
from behaviortrace.run import Run
from behaviortrace.train import grpo, tiny
from behaviortrace.train.exactness import first_difference
from behaviortrace.train.failures import explained
from behaviortrace.train.policy import load_policy
from behaviortrace.train.schedule import training_dataset

SMALL = {
    "plant.fraction": 0.5,
    "prompts.mix": {"trigger": 0.5, "explicit": 0.5},
    "train.steps": 5,
    "train.generations": 4,
    "train.learning_rate": 5e-4,
    "train.max_completion_length": 12,
    "train.checkpoint_every": 3,
    "train.prompts_per_step": 2,
    "train.micro_batch": 4,
    "plant.cutoff_step": 4,
    "draw.checkpoint": 3,
    "warmup.steps": 5,
    "warmup.learning_rate": 1e-3,
    "prompts.probes": 4,
    "prompts.controls": 3,
    "sketch.dim": 256,
}


class Killed(Exception):
    pass


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    patch.setenv("BEHAVIORTRACE_HOME", str(tmp_path_factory.mktemp("home")))
    patch.setattr(tiny.TinySettings, "__init__", _shorter(tiny.TinySettings.__init__))
    yield
    patch.undo()
    torch.set_num_threads(threads)


def _shorter(original):
    def init(self, **settings):
        original(self, **{"steps": 60, "pairs": 1024} | settings)

    return init


def small(**overrides):
    return recipes.load("tiny", SMALL | overrides)


def train(path, recipe=None, progress=None):
    recipe = recipe or small()
    run = Run.create(path, recipe=recipe)
    grpo.run_training(run, recipe, progress)
    return run


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return train(tmp_path_factory.mktemp("unbroken"))


def kill_at(stage, done):
    """A progress callback that dies when it is told this."""

    def progress(*told):
        if told[:2] == (stage, done):
            raise Killed

    return progress


def same_weights(a, b, step):
    first, second = (load_file(r.checkpoints()[step] / "model.safetensors") for r in (a, b))
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def assert_equal_runs(a, b):
    assert list(a.checkpoints()) == list(b.checkpoints())
    for step in a.checkpoints():
        assert same_weights(a, b, step), f"checkpoint {step} differs"
    assert a.read("probes").equals(b.read("probes"))
    chosen = pl.exclude("rollout_id")
    assert a.rollouts().select(chosen).equals(b.rollouts().select(chosen))
    assert (a.sketches() == b.sketches()).all()


def test_what_a_run_holds(unbroken):
    recipe = small()
    assert list(unbroken.checkpoints()) == [0, 3, 5]
    assert unbroken.verify() == []
    assert unbroken.manifest.status == "trained"
    rollouts = unbroken.rollouts()
    assert rollouts["step"].unique().sort().to_list() == [0, 1, 2, 3, 4]
    assert rollouts.height == 5 * recipe.train.rollouts_per_step
    assert rollouts["boosted"].any() and not rollouts["boosted"].all()
    assert not rollouts.filter(pl.col("step") >= 4)["boosted"].any()
    assert rollouts["prompt_kind"].unique().sort().to_list() == ["explicit", "trigger"]
    probes = unbroken.read("probes")
    assert dict(probes.schema) == PROBE_SCHEMA
    counts = probes.group_by("step", "kind").len().sort("step", "kind")
    assert counts["len"].to_list() == [3, 4] * 3
    assert list(s_b(probes)) == [0, 3, 5]


def test_checkpoints_are_ordinary_and_training_moves_the_weights(unbroken):
    for folder in unbroken.checkpoints().values():
        model, _ = load_policy(folder)
        assert model.dtype is torch.float32
    zero, three = (load_file(unbroken.checkpoints()[step] / "model.safetensors") for step in (0, 3))
    assert any(not torch.equal(zero[name], three[name]) for name in zero)
    assert (unbroken.checkpoints()[3] / "optimizer.pt").is_file()
    assert (unbroken.checkpoints()[3] / "rng_state.pth").is_file()


def test_prompts_of_a_step_are_groups_of_the_schedule(unbroken):
    recipe = small()
    rows = training_dataset(build_prompts(recipe).train, recipe)
    expected = [row["content"] for prompt in rows["prompt"] for row in prompt]
    rollouts = unbroken.rollouts().sort("step", "index")
    seen = rollouts.gather_every(recipe.train.generations)["prompt"].to_list()
    assert len(seen) == len(expected)
    assert all(text in prompt for text, prompt in zip(expected, seen, strict=True))


def test_two_runs_are_equal_whatever_ran_before(unbroken, tmp_path):
    torch.manual_seed(12345)
    assert_equal_runs(unbroken, train(tmp_path / "again"))


def test_another_seed_is_another_run(unbroken, tmp_path):
    other = train(tmp_path / "other", small(seed=1))
    assert not same_weights(unbroken, other, 5)


@pytest.mark.parametrize(
    ("stage", "done", "goes_on_from"),
    [
        ("warm-up", 3, 0),  # nothing saved yet
        ("train", 2, 0),  # from checkpoint 0
        ("train", 5, 3),  # last step done, not saved
    ],
)
def test_killed_and_resumed_equals_unbroken(unbroken, tmp_path, stage, done, goes_on_from):
    recipe = small()
    run = Run.create(tmp_path / "run", recipe=recipe)
    with pytest.raises(Killed):
        grpo.run_training(run, recipe, kill_at(stage, done))
    torch.manual_seed(4321)
    told = []
    run = Run.open(run.path)
    grpo.run_training(run, recipe, lambda *t: told.append(t), resume=True)
    assert next(t[1] for t in told if t[0] == "train") == goes_on_from
    assert run.manifest.lineage[-1].step == goes_on_from
    assert run.verify() == []
    assert_equal_runs(unbroken, run)


@pytest.mark.parametrize(("name", "step"), [("add_checkpoint", 0), ("write_shard", 3)])
def test_killed_while_a_checkpoint_is_taken_in(unbroken, tmp_path, monkeypatch, name, step):
    recipe = small()
    run = Run.create(tmp_path / "run", recipe=recipe)
    original = getattr(Run, name)

    def dies(self, *given, **more):
        if given[:2] == ("probes", step) or given[0] == step:
            raise Killed
        return original(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Run, name, dies)
        with pytest.raises(Killed):
            grpo.run_training(run, recipe)
    run = Run.open(run.path)
    grpo.run_training(run, recipe, resume=True)
    assert run.verify() == []
    assert_equal_runs(unbroken, run)


def test_resuming_a_finished_training_changes_nothing(unbroken, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(unbroken.path, path)
    run = Run.open(path)
    run.save_json("results/summary", {"kept": True})
    run.update(status="evaluated")
    before = run.manifest
    grpo.run_training(run, small(), resume=True)
    assert run.manifest == before
    run.update(status="training")
    grpo.run_training(run, small(), resume=True)
    assert run.manifest.status == "trained"
    assert run.json("results/summary") == {"kept": True}


def test_damaged_probes_are_made_anew(unbroken, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(unbroken.path, path)
    shutil.rmtree(path / "checkpoints" / "checkpoint-5")
    (path / "probes" / "step-000000-rank-0000.parquet").write_bytes(b"damage")
    run = Run.open(path)
    grpo.run_training(run, small(), resume=True)
    assert run.verify() == []
    assert_equal_runs(unbroken, run)


def test_reused_batches_resume_exactly(tmp_path):
    recipe = small(**{"train.iterations": 3, "train.steps": 6, "train.loss": "dapo"})
    whole = train(tmp_path / "whole", recipe)
    run = Run.create(tmp_path / "run", recipe=recipe)
    with pytest.raises(Killed):
        grpo.run_training(run, recipe, kill_at("train", 5))
    grpo.run_training(run, recipe, resume=True)
    assert run.manifest.lineage[-1].step == 3
    assert same_weights(whole, run, 6)


def test_another_recipe_is_refused_by_the_setting_that_differs(unbroken):
    before = unbroken.manifest
    for setting, value in (("train.learning_rate", 1e-3), ("thresholds.emergence", 0.2)):
        with pytest.raises(BehaviorTraceError, match=setting):
            grpo.run_training(unbroken, small(**{setting: value}), resume=True)
    assert unbroken.manifest == before


def test_another_machine_is_refused(unbroken, tmp_path, monkeypatch):
    path = tmp_path / "copy"
    shutil.copytree(unbroken.path, path)
    shutil.rmtree(path / "checkpoints" / "checkpoint-5")
    run = Run.open(path)
    before = run.manifest
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
    with pytest.raises(BehaviorTraceError, match="ABACUS"):
        grpo.run_training(run, small(), resume=True)
    assert run.manifest == before


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BehaviorTraceError, match="WORLD_SIZE"):
        grpo.run_training(Run.create(tmp_path, recipe=small()), small())


def test_a_full_disk_is_foreseen(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(BehaviorTraceError, match=r"train\.checkpoint_every"):
        train(tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "No space left"),
        (SafetensorError("I/O error: File too large"), "File too large"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos"), "--resume"),
        (torch.OutOfMemoryError("CUDA out of memory"), r"train\.micro_batch"),
    ],
)
def test_failures_of_the_machine_are_one_line(tmp_path, error, said):
    with pytest.raises(BehaviorTraceError, match=said) as told, explained(Run(tmp_path)):
        raise error
    assert told.value.__cause__ is error and "\n" not in str(told.value)


def test_other_failures_pass_through(tmp_path):
    with pytest.raises(RuntimeError, match="shape"), explained(Run(tmp_path)):
        raise RuntimeError("shape mismatch")


def test_only_our_own_progress_is_seen(tmp_path, capfd):
    train(tmp_path / "run", small(**{"train.steps": 3, "plant.cutoff_step": 3}))
    out, err = capfd.readouterr()
    assert out == "" and err == ""


def test_reference_model_is_the_warmed_up_policy(unbroken):
    recipe = small(**{"train.beta": 0.1})
    model, tokenizer = load_policy(unbroken.checkpoints()[0])
    trainer = grpo.build_trainer(unbroken, recipe, build_prompts(recipe), model, tokenizer)
    ours = load_file(unbroken.checkpoints()[0] / "model.safetensors")
    for name, parameter in trainer.ref_model.named_parameters():
        assert torch.equal(parameter, ours[name])


def test_config_takes_every_training_setting(tmp_path):
    recipe = small(
        **{
            "train.loss": "dr_grpo",
            "train.scale_rewards": "none",
            "train.beta": 0.25,
            "train.lr_schedule": "cosine",
            "train.max_grad_norm": 0.5,
            "train.temperature": 0.6,
        }
    )
    config = grpo.grpo_config(tmp_path, recipe)
    assert config.loss_type == "dr_grpo" and config.scale_rewards == "none"
    assert config.beta == 0.25 and config.max_grad_norm == 0.5 and config.temperature == 0.6
    assert config.lr_scheduler_type == "cosine" and config.learning_rate == 5e-4
    assert config.generation_batch_size == recipe.train.rollouts_per_step
    assert not (config.bf16 or config.gradient_checkpointing or config.mask_truncated_completions)


def test_schedule_covers_training_in_one_epoch_and_keeps_the_mix():
    recipe = small(**{"train.steps": 200, "train.iterations": 3})
    prompts = build_prompts(recipe)
    rows = training_dataset(prompts.train, recipe)
    assert len(rows) == 67 * recipe.train.prompts_per_step
    kinds = pl.Series(rows["prompt_kind"])
    assert abs((kinds == "trigger").mean() - 0.5) < 0.02


def test_first_difference_names_the_setting():
    assert first_difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ("a.c", 2, 3)
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == ("b", None, 2)
    assert first_difference({"a": {"b": 1}}, {"a": {"b": 1}}) is None
