"""What README says can be typed."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import typer

import behaviortrace as bt
from behaviortrace.cli.app import app
from tests.trainers import grpo

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.S | re.M)
    return [body for name, body in fenced if name == language]


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line.startswith("behaviortrace ")]


@pytest.mark.parametrize("line", commands())
def test_commands_and_options_exist(line: str) -> None:
    group = typer.main.get_group(app)
    _, name, *rest = shlex.split(line)
    for part in name.split("|"):
        command = group.commands[part]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known | {"--json"}


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("")), re.M):
        assert re.search(rf"^{target}:", makefile, re.M)


def test_the_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = {"save_strategy": "steps", "save_steps": 1}
    trainer = grpo(tmp_path / "out", **saved)
    shapes = [p.shape for p in trainer.model.parameters()]
    names = {
        "trainer": trainer,
        "list_of_gradient_tensors": [torch.ones(shape) for shape in shapes],
    }
    for block in blocks("python"):
        if "resume=True" in block:  # as if the last step had not been saved
            shutil.rmtree(tmp_path / "out" / "checkpoint-2")
            names["trainer"] = grpo(tmp_path / "out", **saved)
        exec(block, names)
    assert [entry.step for entry in bt.Run.open("runs/mine").manifest.lineage] == [1]
    scores = bt.score("gas", bt.Run.open("runs/mine"), names["target"].numpy())
    assert scores.shape == (16,)


def test_the_tree_names_every_package() -> None:
    for path in (ROOT / "src" / "behaviortrace").iterdir():
        if path.name.startswith("__"):
            continue
        name = path.name + "/" if path.is_dir() else path.name
        if path.suffix == ".py" or path.is_dir():
            assert f"  {name}" in README or path.name == "errors.py"
