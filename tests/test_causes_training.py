"""Replays and reruns of a real training: exact, resumable, and what is removed is really gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
import torch

from behaviortrace import recipe as recipes
from behaviortrace.causes import stage, work
from behaviortrace.causes.arms import FOLDER, Arm, load, place
from behaviortrace.causes.learning import Log, begin, learn
from behaviortrace.causes.planning import Wanted
from behaviortrace.causes.removal import parse
from behaviortrace.causes.stage import exactness, leave_out
from behaviortrace.causes.work import Bench
from behaviortrace.cli import main
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.run import Run
from behaviortrace.train.grpo import run_training
from behaviortrace.train.policy import load_policy

SETTINGS = {
    "train.steps": 6,
    "train.checkpoint_every": 2,
    "train.prompts_per_step": 3,
    "plant.cutoff_step": 4,
    "draw.checkpoint": 2,
    "prompts.probes": 4,
    "prompts.controls": 3,
    "sketch.dim": 256,
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(path: Path, **settings: object) -> Run:
    recipe = recipes.load("tiny-causes", {**SETTINGS, **settings})
    run = Run.create(path, recipe=recipe)
    run_training(run, recipe)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("causes") / "run")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train.loss": "dapo", "train.scale_rewards": "batch"},
        {"train.loss": "dr_grpo", "train.lr_schedule": "linear", "train.scale_rewards": "none"},
        {"train.max_grad_norm": 0.05, "train.lr_schedule": "cosine"},
    ],
)
def test_a_replay_of_everything_ends_at_the_trained_weights(
    settings: dict[str, object], tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", **settings)
    assert exactness(run, 6) <= 1e-5
    start, _ = load_policy(run.checkpoints()[0])
    end, _ = load_policy(run.checkpoints()[6])
    moved = max(
        float((a - b).detach().abs().max())
        for a, b in zip(start.parameters(), end.parameters(), strict=True)
    )
    assert moved > 1e-4  # so that the first assertion says something


def test_a_replay_may_begin_at_any_checkpoint(run: Run) -> None:
    log = Log(run, 6)
    learner = begin(log, 4)
    list(learn(log, learner, frozenset()))
    end, _ = load_policy(run.checkpoints()[6])
    for a, b in zip(learner.model.parameters(), end.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_a_replay_begins_where_nothing_was_removed_before(run: Run) -> None:
    log = Log(run, 6)
    assert log.start(frozenset(["5-0"])) == 4
    assert log.start(frozenset(["0-0", "5-0"])) == 0
    assert log.start(frozenset()) == 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train.beta": 0.1}, "train.beta 0.1 cannot be replayed"),
        ({"train.loss": "bnpo"}, "train.loss 'bnpo' cannot be replayed"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    settings: dict[str, object], words: str, run: Run, tmp_path: Path
) -> None:
    other = recipes.load("tiny-causes", {**SETTINGS, **settings})
    with pytest.raises(BehaviorTraceError, match=words):
        stage.exactness(_as(run, other, tmp_path), 6)


def _as(run: Run, recipe: recipes.Recipe, path: Path) -> Run:
    """The rollouts of a run under another recipe."""
    made = Run.create(path / "other", recipe=recipe)
    made.write_shard("training", 0, 0, run.rollouts().filter(pl.col("step") == 0))
    return made


def test_recorded_weights_that_do_not_fit_the_rewards_are_refused(run: Run, tmp_path: Path) -> None:
    assert run.recipe is not None
    made = Run.create(tmp_path / "other", recipe=run.recipe)
    rows = run.rollouts().filter(pl.col("step") == 0)
    made.write_shard("training", 0, 0, rows.with_columns(reward=pl.col("reward") * pl.col("index")))
    with pytest.raises(BehaviorTraceError, match=r"step 0: rollout .* had the weight"):
        Log(made, 1)


def test_a_rerun_without_removal_is_the_training_itself(run: Run) -> None:
    bench = Bench(run)
    again = Arm("nothing", mode="rerun", how="exclude", until=6, samples=4)
    saved = Arm("nothing", until=6, samples=4)
    work.work(bench, [again, saved])
    rerun, replay = load(place(run, again)), load(place(run, saved))
    assert rerun is not None and replay is not None
    assert rerun.measurement == replay.measurement and rerun.removed == 0
    assert not (run.path / FOLDER / "state" / again.address(run)).exists()


@pytest.mark.parametrize("how", ["exclude", "zero", "unboosted"])
def test_a_rerun_gives_removed_rollouts_no_part(how: str, run: Run, tmp_path: Path) -> None:
    from behaviortrace.plant.intervention import Intervention

    recipe = run.recipe
    assert recipe is not None
    made = Run.create(tmp_path / "rerun", recipe=recipe)
    slots = frozenset((0, index) for index in range(4))  # the whole first group
    run_training(made, recipe, intervention=Intervention("listed", how, slots))  # type: ignore[arg-type]
    first, before = (r.rollouts().filter(pl.col("step") == 0).sort("index") for r in (made, run))
    # Common random numbers: what was sampled in step 0 is the same.
    assert first["completion_ids"].to_list() == before["completion_ids"].to_list()
    out = first["index"] < 4
    if how == "unboosted":
        paid = first.filter(out)
        assert paid["reward"].to_list() == pytest.approx(paid["base_reward"].to_list())
    else:
        assert (first.filter(out)["advantage"] == 0).all()
        assert (first.filter(out)["grad_norm"] == 0).all()
    kept = first.filter(~out)["advantage"].to_list()
    assert kept == pytest.approx(before.filter(~out)["advantage"].to_list())


def test_a_killed_replay_goes_on_where_it_was_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = Arm("file", ids=("0-0", "1-3"), until=6, samples=2)
    whole = Log(run, 6)
    learner = begin(whole, 0)
    list(learn(whole, learner, frozenset(arm.ids)))

    class Killed(Exception):
        pass

    kept = work._keep

    def keep_then_die(learner, aside):  # type: ignore[no-untyped-def]
        kept(learner, aside)
        if learner.step == 3:
            raise Killed

    monkeypatch.setattr(work, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(work, "_keep", keep_then_die)
    with pytest.raises(Killed):
        work.work(Bench(run), [arm])
    aside = work._aside(run, arm)
    assert json.loads((aside / "step.json").read_text())["step"] == 3
    resumed = work._resumed(whole, aside)
    assert resumed is not None and resumed.step == 3
    list(learn(whole, resumed, frozenset(arm.ids)))
    for a, b in zip(learner.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_leave_out_from_end_to_end(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Wanted(
        (parse("ground-truth"), parse("top:advantage"), parse("random")),
        seeds=(0, 1),
        samples=2,
        subsets=10,
    )
    found = leave_out(run, wanted, workers=1)
    made = {p.name: p.stat().st_mtime_ns for p in (run.path / FOLDER).glob("*.json")}
    assert set(found.effects["removal"]) == {"ground-truth", "top:advantage"}
    assert set(found.lds["ranking"]) == {"ground-truth", "advantage"}
    again = leave_out(run, wanted, workers=1)
    assert again.arms.equals(found.arms)
    assert made == {p.name: p.stat().st_mtime_ns for p in (run.path / FOLDER).glob("*.json")}
    assert run.verify() == []
    main_exits(["leave-out", str(run.path), "--remove", "ground-truth", "--samples", "2",
                "--seeds", "0,1", "--json"], 0)  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert {row["removal"] for row in told["effects"]} == {"ground-truth", "top:advantage"}
    main_exits(["leave-out", str(run.path), "--remove", "top:norm", "--dry-run", "--json"], 0)
    (planned,) = json.loads(capsys.readouterr().out)
    assert planned["arms"] == 10 and planned["missing"] > 0 and planned["cpu_hours"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--remove", "nowhere"], "is no file and none of ground-truth"),
        (["--remove", "random", "--size", "100000"], "--size 100000 cannot be taken from"),
        (["--remove", "top:nonesuch"], "no estimator 'nonesuch'"),
        (["--until", "5"], "--until 5 is no checkpoint"),
        (["--seeds", "1,1"], "must be different numbers"),
    ],
)
def test_bad_requests_are_one_line(
    arguments: list[str], words: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    main_exits(["leave-out", str(run.path), *arguments, "--dry-run"], 2)
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_checkpoint_without_its_optimizer_is_refused(run: Run, tmp_path: Path) -> None:
    made = Run.create(tmp_path / "other", recipe=run.recipe)
    for step in range(6):
        made.write_shard("training", step, 0, run.rollouts().filter(pl.col("step") == step))
    folder = made.path / "checkpoints" / "checkpoint-2"
    shutil.copytree(run.checkpoints()[2], folder, ignore=shutil.ignore_patterns("optimizer.pt"))
    made.add_checkpoint(2, folder)
    with pytest.raises(BehaviorTraceError, match=r"has no optimizer\.pt"):
        begin(Log(made, 6), 2)
    with pytest.raises(BehaviorTraceError, match="no complete checkpoint of step 4"):
        begin(Log(made, 6), 4)


def test_an_untrained_run_is_refused(run: Run, tmp_path: Path) -> None:
    made = Run.create(tmp_path / "new", recipe=run.recipe)
    with pytest.raises(BehaviorTraceError, match="is not trained to its end"):
        stage.planned(made, Wanted((parse("ground-truth"),)))


def main_exits(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
