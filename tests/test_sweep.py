"""A sweep's plan, book, loop and merging, each on its own."""

from __future__ import annotations

import ast
import dataclasses
import graphlib
import importlib.util
import inspect
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest

from behaviortrace import recipe as recipes
from behaviortrace.checklist import Evidence, Replicate, judge, registered
from behaviortrace.checklist.conclusion import LEVELS
from behaviortrace.checklist.rows import DIRECTION
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.processes.executors import LocalExecutor, Standing, execute
from behaviortrace.processes.threads import environment
from behaviortrace.recipe import Thresholds
from behaviortrace.records import Verdict
from behaviortrace.run import Run
from behaviortrace.sweep import Job, Plan, address, make_plan, tables
from behaviortrace.sweep.conclusion import ROLLOUTS, conclusion, held, tone
from behaviortrace.sweep.controls import CONTROL_SCHEMA, control_rows
from behaviortrace.sweep.effect import Effect, effect
from behaviortrace.sweep.manifest import Book, begun, refuse_another
from behaviortrace.sweep.merge import KEYS, PITFALL_SCHEMA, Member
from behaviortrace.sweep.plan import cores, draw_seeds
from behaviortrace.sweep.replicates import summarise_replicates

TINY = recipes.load("tiny")


def plan(tmp_path: Path, seeds: Sequence[int] = (0, 1, 2), draws: int = 2, **more: Any) -> Plan:
    return make_plan(tmp_path / "sweep", TINY, seeds, draws, **more)


# --- how the package is built ------------------------------------------------------------------


def imported(module: Path, package: str) -> set[str]:
    """Modules of the same package that a module imports, anywhere in it but for annotations."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            parent, _, name = node.module.rpartition(".")
            if parent == package:
                found.add(name)
            elif node.module == package:
                found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("home", [make_plan, execute])
def test_no_modules_of_a_package_import_each_other_in_a_circle(home: Any) -> None:
    package = home.__module__.rpartition(".")[0]
    modules = Path(inspect.getfile(home)).parent.glob("[!_]*.py")
    graph = {module.stem: imported(module, package) for module in modules}
    assert any(graph.values())
    list(graphlib.TopologicalSorter(graph).static_order())  # a CycleError names the circle


# --- what a run is called ---------------------------------------------------------------------


def settings(data: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        found += settings(value, f"{name}.") if isinstance(value, dict) else [name]
    return found


def test_every_setting_is_part_of_the_address_but_for_words_and_draw_seeds() -> None:
    changed = {
        "name": "other",
        "seed": 5,
        "model.source": "smollm2",
        "plant.bonus": 7.0,
        "train.steps": 17,
        "train.learning_rate": 3e-4,
        "prompts.probes": 21,
        "sketch.dim": 2048,
        "draw.prompts": 11,
        "draw.checkpoint": 4,
        "targets.pairs": 5,
        "evaluate.resamples": 500,
        "thresholds.headroom": 0.2,
    }
    assert set(changed) < set(settings(TINY.model_dump()))
    found = {address(recipes.load("tiny", {key: value})) for key, value in changed.items()}
    assert len(found) == len(changed) and address(TINY) not in found
    same = {"summary": "Other words.", "takes": "an hour", "draw.seeds": [7, 8]}
    same |= {"assume.repeat_icc": 0.5}
    assert {address(recipes.load("tiny", {k: v})) for k, v in same.items()} == {address(TINY)}


def test_an_address_does_not_depend_on_the_process() -> None:
    code = "from behaviortrace import recipe, sweep; print(sweep.address(recipe.load('tiny')))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert printed.stdout.strip() == address(TINY)


def test_a_run_a_seed_with_all_draws(tmp_path: Path) -> None:
    jobs = plan(tmp_path, (2, 0), draws=3).jobs
    assert [job.seed for job in jobs] == [0, 2]
    assert [job.draws for job in jobs] == [[100, 101, 102]] * 2
    assert jobs[0].draw_names == ["seed-100", "seed-101", "seed-102"]
    assert len({job.path for job in jobs}) == 2
    assert all(job.path.parent == tmp_path / "sweep" / "runs" for job in jobs)
    again = Job.parse(jobs[1].dump())
    assert again.recipe == jobs[1].recipe and again.name == jobs[1].name


def test_more_draws_begin_with_the_same_ones() -> None:
    several = recipes.load("tiny", {"draw.seeds": [9, 3]})
    assert draw_seeds(TINY, 1) == (100,) and draw_seeds(TINY, 3) == (100, 101, 102)
    assert [draw_seeds(several, n) for n in (1, 2, 4)] == [(9,), (9, 3), (9, 3, 10, 11)]


def test_a_sweep_only_grows(tmp_path: Path) -> None:
    grown = plan(tmp_path, (4,), draws=1).grown((0, 1), (100, 101))
    assert grown.seeds == (0, 1, 4) and grown.draws == (100, 101)


@pytest.mark.parametrize(("workers", "seeds", "threads"), [(1, 3, 8), (2, 3, 4), (3, 3, 2)])
def test_the_cores_are_shared_out(tmp_path: Path, workers: int, seeds: int, threads: int) -> None:
    made = dataclasses.replace(plan(tmp_path, range(seeds), workers=workers), cores=8)
    assert made.threads == threads
    assert made.slots * made.threads <= 8
    assert {job.threads for job in made.jobs} == {threads}
    assert set(environment(threads).values()) == {str(threads)}


def test_more_workers_than_cores_or_runs(tmp_path: Path) -> None:
    made = dataclasses.replace(plan(tmp_path, range(3), workers=50), cores=2)
    assert made.slots == 3 and made.threads == 1
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"seeds": []}, "--seeds"),
        ({"seeds": [0, -1]}, "-1"),
        ({"seeds": [2**32]}, "below 2\\*\\*32"),
        ({"draws": 10**8}, "--draws is 100000000; give 1 to 1,000"),
        ({"seeds": [1, 2, 1]}, "--seeds has 1 more than once"),
        ({"draws": 0}, "--draws is 0"),
        ({"workers": 0}, "--workers is 0"),
        ({"executor": "slurm"}, "slurm"),
    ],
)
def test_bad_plans_are_refused(tmp_path: Path, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(BehaviorTraceError, match=named):
        plan(tmp_path, **wrong)


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BehaviorTraceError, match=r"pip install 'behaviortrace\[ray\]'") as raised:
        plan(tmp_path, executor="ray")
    assert "\n" not in str(raised.value)


# --- the manifest -----------------------------------------------------------------------------


def test_the_book_keeps_what_is_written(tmp_path: Path) -> None:
    made = plan(tmp_path, (0, 3))
    book = Book(made.root)
    made.root.mkdir()
    assert book.read() is None
    written = book.write(begun(made, None))
    assert book.read() == written
    assert [run.seed for run in written.runs] == [0, 3]
    entry = written.run(3).model_copy(update={"state": "failed", "note": "lost"})
    book.write(written.with_run(entry))
    again = book.read()
    assert again is not None and again.run(3).note == "lost" and again.run(0).state == "waiting"
    assert [path.name for path in made.root.iterdir()] == ["sweep.json"]


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"schema_version": 99}', b'{"seeds": 3}'])
def test_a_book_nobody_can_read_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(BehaviorTraceError, match=r"sweep\.json"):
        Book(tmp_path).read()


def test_another_recipe_is_refused_by_the_first_difference(tmp_path: Path) -> None:
    made = plan(tmp_path)
    known = begun(made, None)
    for harmless in ({"seed": 9}, {"draw.seeds": [5]}, {"summary": "Other words."}):
        refuse_another(known, recipes.load("tiny", harmless), made.root)
    with pytest.raises(BehaviorTraceError, match=r"train\.steps was 16 and is now 20"):
        refuse_another(known, recipes.load("tiny", {"train.steps": 20}), made.root)


# --- the loop ---------------------------------------------------------------------------------


class Scripted:
    """An executor whose processes end as a script says, two looks after they were started."""

    def __init__(self, script: dict[int, list[str]]) -> None:
        self.script = script
        self.started: list[int] = []
        self.most = self.now = 0
        self.closed = False

    def start(self, job: Job, slot: int) -> dict[str, Any]:
        self.started.append(job.seed)
        self.now += 1
        self.most = max(self.most, self.now)
        assert not job.aside("outcome").exists()
        return {"job": job, "looks": 0, "how": self.script[job.seed].pop(0)}

    def ended(self, handle: dict[str, Any]) -> str | None:
        handle["looks"] += 1
        job, how = handle["job"], handle["how"]
        if handle["looks"] < 2:
            told = {"pid": 7, "stage": "train", "done": 1, "total": 4, "seconds_left": 2.0}
            job.aside("progress").write_text(json.dumps(told))
            return None
        self.now -= 1
        if how != "killed":
            outcome = {"ended": how, "reason": None if how == "finished" else f"{how} it was"}
            job.aside("outcome").write_text(json.dumps(outcome))
        return "killed by SIGKILL"

    def close(self) -> None:
        self.closed = True


def played(
    tmp_path: Path, script: dict[int, list[str]], workers: int = 2
) -> tuple[Scripted, dict[int, Standing], list[list[Standing]]]:
    made = plan(tmp_path, sorted(script), workers=workers)
    (made.root / "progress").mkdir(parents=True)
    executor, seen = Scripted(script), []
    states: dict[int, list[str]] = {}

    def changed(job: Job, standing: Standing) -> None:
        states.setdefault(job.seed, []).append(standing.state)

    ended = execute(
        executor,
        made.jobs,
        workers,
        changed=changed,
        watch=lambda standings: seen.append(list(standings)),
    )
    assert executor.closed and not any((made.root / "progress").iterdir())
    assert all(of_run[-1] in ("finished", "failed") for of_run in states.values())
    return executor, {s.key: s for s in ended}, seen


def test_a_lost_run_goes_on_and_the_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("behaviortrace.processes.executors._LOOK_SECONDS", 0.0)
    script = {
        0: ["killed", "broken", "finished"],
        1: ["finished"],
        2: ["killed", "killed", "killed", "never"],
        3: ["refused", "never"],
        4: ["finished"],
    }
    executor, ended, seen = played(tmp_path, script)
    states = {seed: standing.state for seed, standing in ended.items()}
    assert states == {0: "finished", 1: "finished", 2: "failed", 3: "failed", 4: "finished"}
    assert {seed: standing.attempts for seed, standing in ended.items()} == {
        0: 3,
        1: 1,
        2: 3,
        3: 1,
        4: 1,
    }
    assert executor.most == 2
    assert ended[3].reason == "refused it was"
    assert "killed by SIGKILL (attempt 3 of 3)" in str(ended[2].reason)
    assert "logs" in str(ended[2].reason) and "\n" not in str(ended[2].reason)
    assert any(s.stage == "train" and s.done == 1 and s.process == 7 for look in seen for s in look)


def test_processes_are_stopped_where_the_sweep_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("behaviortrace.processes.executors._LOOK_SECONDS", 0.0)
    made = plan(tmp_path, (0, 1), workers=2)
    (made.root / "progress").mkdir(parents=True)
    executor = Scripted({0: ["finished"], 1: ["finished"]})

    def interrupt(standings: Sequence[Standing]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(executor, made.jobs, 2, changed=lambda *_: None, watch=interrupt)
    assert executor.closed


def test_each_local_worker_has_its_threads_and_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    class Process:
        def __init__(self, command: list[str], **options: Any) -> None:
            assert command[1:3] == ["-m", "behaviortrace.processes.worker"]
            seen.append(options["env"])
            self.stdin = io.BytesIO()

        def poll(self) -> int | None:
            return -9

    monkeypatch.setattr(subprocess, "Popen", Process)
    made = dataclasses.replace(plan(tmp_path, workers=3), cores=12)
    executor = LocalExecutor(["4", "5"])
    for slot, job in enumerate(made.jobs):
        assert executor.ended(executor.start(job, slot)) == "killed by SIGKILL"
    assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == ["4", "5", "4"]
    assert {env["OMP_NUM_THREADS"] for env in seen} == {"4"}
    assert {env["NUMBA_NUM_THREADS"] for env in seen} == {"4"}


# --- what all of them say ---------------------------------------------------------------------


def test_replicates_are_summed_up() -> None:
    values = {(0, "a"): 0.6, (0, "b"): 0.7, (1, "a"): 0.4}
    replicates = [Replicate(s, d, auc, auc - 0.05, auc + 0.05) for (s, d), auc in values.items()]
    found = summarise_replicates(replicates)
    assert found["replicates"] == 3 and found["separating"] == 2
    assert [row["flips"] for row in found["sign_flips"]] == [False, False]
    mean = found["components"]["mean"]
    assert mean["lo"] < mean["point"] < mean["hi"] and found["components_missing"] is None
    assert tables.replicates(found).rows and tables.sign_flips(found).rows


def test_one_run_is_not_enough_where_draws_disagree() -> None:
    def said(*ends: tuple[int, float, float, float]) -> bool | None:
        made = [Replicate(s, str(i), auc, lo, hi) for i, (s, auc, lo, hi) in enumerate(ends)]
        return summarise_replicates(made)["disagree"]

    alike = (0, 0.7, 0.6, 0.8)
    assert said() is None and said(alike) is None
    assert said(alike, (0, 0.8, 0.55, 0.9)) is None  # one training tells nothing of another
    assert said(alike, (1, 0.8, 0.55, 0.9)) is False
    assert said(alike, (0, 0.6, 0.45, 0.7)) is True  # one interval excludes 0.5
    assert said((0, 0.6, 0.4, 0.7), (1, 0.4, 0.3, 0.6)) is True  # they are on different sides
    assert said((0, 0.3, 0.2, 0.4), (1, 0.4, 0.3, 0.6)) is True  # one excludes 0.5 from below


def test_the_table_of_emergence_tells_taught_from_kept() -> None:
    rates = {"0": 0.3, "40": 0.75, "100": 0.0}
    evidence = Evidence(summary={"s_b": rates, "s_b_responses": dict.fromkeys(rates, 20)})
    unprobed = Evidence()
    members = [
        Member(seed, "runs/x", cast(Run, None), each, judge(each))
        for seed, each in enumerate((evidence, unprobed))
    ]
    found = tables.emergence(members)
    shown = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert shown[0]["s_b, highest"].text == "0.750 at step 40"
    assert (shown[0]["Taught"].text, shown[0]["Kept"].text) == ("yes", "no")
    assert shown[1]["Taught"].reason == "the emergence line was not run"


def test_the_pitfalls_are_one_table_with_the_sixth_over_all() -> None:
    shown = pl.DataFrame(
        [("cliff", "P1: cliff", 0, True, "", "{}"), ("slice", "P3: slice", 1, None, "", "{}")],
        schema=PITFALL_SCHEMA,
        orient="row",
    )
    found = tables.pitfalls(shown, {"disagree": True}, [0, 1])
    text = [[cell.text for cell in row] for row in found.rows]
    assert text[0] == ["P1: cliff", "shows", "—"] and text[1] == ["P3: slice", "—", "undecided"]
    assert tables.pitfalls(shown, {"disagree": None}, [0, 1]).rows[2][1].reason
    assert text[2][0].startswith("P6") and text[2][1] == "shows, over all seeds"
    assert all(len(row) == len(found.columns) for row in found.rows)


def test_what_each_control_leaves_is_a_mean_over_seeds() -> None:
    aucs = {"raw": 0.7, "residualized": 0.62, "residualized_norm": 0.5}
    every = [
        {
            "level": "rollout_level",
            "label": "behavior",
            "seed": i // 2,
            "draw": draw,
            "variant": variant,
            **DIRECTION,
            "auc": auc + 0.01 * i,
            "lo": auc - 0.06,
            "hi": auc + 0.08,
        }
        for i, draw in enumerate([*"ababab", None])
        for variant, auc in aucs.items()
    ]
    found = control_rows(pl.DataFrame(every, schema_overrides={"draw": pl.String}))
    assert dict(found.schema) == CONTROL_SCHEMA
    mine = {row["variant"]: row for row in found.rows(named=True) if "minimal" in row["ranking"]}
    for variant, auc in aucs.items():
        assert mine[variant]["replicates"] == 6  # training rollouts are no draw
        assert mine[variant]["mean"] == pytest.approx(auc + 0.025)
        assert mine[variant]["lo"] < auc < mine[variant]["hi"]
    assert mine["residualized_spline"]["reason"] == "no run evaluated it"
    shown = tables.controls(found)
    assert [row[0].text for row in shown.rows] == [
        "direction, minimal pair",
        "direction, in-context",
        "norm",
        "fluency",
    ]
    assert shown.rows[0][1].text.startswith("0.725 [")
    assert set(control_rows(pl.DataFrame(schema=KEYS))["replicates"]) == {0}
    alone = control_rows(pl.DataFrame(every[:3], schema_overrides={"draw": pl.String}))
    assert "cannot tell seeds from draws" in alone["reason"][0]


def test_too_few_replicates_say_why_nothing_is_compared() -> None:
    for few in ([], [Replicate(0, "a", 0.6, 0.55, 0.65)]):
        found = summarise_replicates(few)
        assert found["components"] is None
        assert tables.replicates(found).reason == f"{found['components_missing']}."


def checklist_of(**changes: str) -> list[Verdict]:
    names = [line.name for line in registered()]
    return [Verdict(n, n, changes.get(n, "pass"), "") for n in names]  # type: ignore[arg-type]  # statuses by word


MET = Effect("pass", "its mean over seeds is 0.620 [0.570, 0.670], norm's 0.400")
FAILED = Effect("fail", "its mean over seeds is 0.620 [0.490, 0.750], norm's 0.400: too wide")
OPEN = Effect("not run", "2 draws of each of 1 seeds, where 2 of 3 are needed")


def test_a_level_is_believed_where_every_run_says_so() -> None:
    good, fluent = checklist_of(), checklist_of(fluency="fail")
    assert tone([good, good], 2, MET) == "believed"
    assert tone([good, fluent], 2, OPEN) == tone([fluent, fluent], 2, OPEN) == "partly"
    assert tone([good, good], 2, OPEN) == "partly"  # seeds decide of rollouts, not single runs
    for undecided in (OPEN, FAILED):
        assert ROLLOUTS not in held([good, good], 2, undecided)
    assert tone([], 2, OPEN) == "open" and tone([good, good], 3, OPEN) == "open"
    said = conclusion([good, fluent], 2, OPEN)
    assert "the rollout-level ranking in 1 of 2 runs" in said
    assert "the ranking of training rollouts in 2 of 2 runs" in said
    left_out = checklist_of(fluency="fail", causal="not run")
    said = conclusion([left_out, left_out], 2, OPEN)
    assert said.startswith("The step-level ranking and the token-level direction may be believed")
    assert "training rollouts" not in said
    assert tone([checklist_of(causal="not run")] * 2, 2, MET) == "believed"
    begun = conclusion([good], 3, OPEN)
    assert begun.startswith("Nothing can be concluded yet: 1 of 3 runs finished")
    bad = checklist_of(integrity="fail")
    assert tone([bad, bad], 2, MET) == "refused"
    said = conclusion([bad, bad], 2, MET)
    assert said.startswith("No ranking may be believed of the sweep")
    assert "but 2 of 2 runs may not be counted" in said


def test_rollouts_are_believed_of_a_sweep_by_the_mean_over_seeds() -> None:
    """Draws too small to tell on their own do not stand in the way of what they tell together."""
    small = checklist_of(fluency="fail")
    assert held([small, small], 2, MET) == list(LEVELS)
    said = conclusion([small, small], 2, MET)
    assert "the rollout-level ranking in 0 of 2 runs" in said and "meets the rule" in said
    mixed = checklist_of(fluency="fail", targets="fail")
    assert ROLLOUTS not in held([small, mixed], 2, MET)


def norms(mean: float | None) -> pl.DataFrame:
    return pl.DataFrame({"ranking": ["norm"], "variant": ["residualized"], "mean": [mean]})


@pytest.mark.parametrize(
    ("values", "norm", "status", "says"),
    [
        ((0.62, 0.63, 0.60, 0.62, 0.64, 0.61), 0.45, "pass", "norm's 0.450"),
        ((0.62, 0.63, 0.60, 0.62, 0.64, 0.61), 0.70, "fail", "the point is not above norm's"),
        ((0.52, 0.50, 0.49, 0.51, 0.50, 0.52), 0.45, "fail", "the interval is not above 0.5"),
        ((0.70, 0.70, 0.75, 0.76, 0.79, 0.80), 0.45, "fail", "exceeds 0.15 (inconclusive)"),
        ((0.62, 0.63, 0.60, 0.62), 0.45, "not run", "2 draws of each of 2 seeds"),
        ((), 0.45, "not run", "0 draws of each of 0 seeds"),
        ((0.62, 0.63, 0.60, 0.62, 0.64, 0.61), None, "not run", "norm's undefined"),
    ],
)
def test_the_rule_over_seeds(
    values: tuple[float, ...], norm: float | None, status: str, says: str
) -> None:
    every = [Replicate(i // 2, str(i % 2), v, v - 0.03, v + 0.03) for i, v in enumerate(values)]
    found = effect(every, norms(norm), Thresholds())
    assert found.status == status and says in found.sentence
    json.dumps(dataclasses.asdict(found), allow_nan=False)
