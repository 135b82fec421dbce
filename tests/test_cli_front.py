"""The front door: help, recipes and completion answer without loading what computes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from behaviortrace import recipe

HEAVY = {"numba", "polars", "pyarrow", "scipy", "torch", "transformers", "trl"}
SAY_LOADED = "print('loaded', *{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
MAIN = f"""
import sys
from behaviortrace import cli
try:
    cli.main(sys.argv[1:])
finally:
    {SAY_LOADED}
"""
COMMANDS = ["bench", "merge", "recipes", "run", "sweep"]


def python(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if "COMPLETE" not in k}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment | extra)


def light(*arguments: str, **extra: str) -> str:
    """What the command line prints, having ended well and loaded nothing heavy."""
    done = python("-c", MAIN, *arguments, **extra)
    loaded = set(done.stderr.rpartition("loaded ")[2].split())
    assert done.returncode == 0 and "behaviortrace" in loaded, done.stderr
    assert not loaded & HEAVY
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "behaviortrace run tiny"),
        (["--help"], "--install-completion"),
        (["--version"], "behaviortrace "),
        (["recipes"], "smollm2-quick"),
        (["recipes", "--json"], '"expected"'),
        (["run", "--help"], "--resume"),
        (["auc", "--help"], "spline"),
        (["verify", "--help"], "--json"),
        (["pitfall", "--help"], "headroom"),
    ],
)
def test_the_front_door_loads_nothing_heavy(arguments: list[str], said: str) -> None:
    assert said in light(*arguments)


def test_the_package_loads_nothing_heavy() -> None:
    done = python("-c", f"import sys, behaviortrace; {SAY_LOADED}")
    loaded = set(done.stderr.split())
    assert "behaviortrace" in loaded and not loaded & HEAVY


def offered(shell: str, words: str) -> list[str]:
    """What a shell is told to offer for the last of the words typed."""
    asked = {"_BEHAVIORTRACE_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        at = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    else:
        at = {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    lines = light(**asked, **at).splitlines()
    if shell == "zsh":  # lines of a script, a choice a line as "NAME":"HELP" or "NAME"
        return [line.split('"')[1] for line in lines if line.count('"') > 1]
    return [line.partition("\t")[0] for line in lines if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_complete(shell: str) -> None:
    assert set(COMMANDS) <= set(offered(shell, "behaviortrace "))
    assert offered(shell, "behaviortrace re") == ["recipes", "report"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_recipes_complete(shell: str) -> None:
    assert offered(shell, "behaviortrace run ") == recipe.names()


@pytest.mark.parametrize("command", ["run", "sweep", "plan"])
def test_a_begun_recipe_completes_and_a_file_is_left_to_the_shell(command: str) -> None:
    begun = [name for name in recipe.names() if name.startswith("smol")]
    assert offered("bash", f"behaviortrace {command} smol") == begun
    assert offered("bash", f"behaviortrace {command} ./mine") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_the_command_however_it_was_called(
    shell: str, tmp_path: Path
) -> None:
    written = {
        "bash": ".bash_completions/behaviortrace.sh",
        "zsh": ".zfunc/_behaviortrace",
        "fish": ".config/fish/completions/behaviortrace.fish",
    }
    extra = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = python("-m", "behaviortrace", "--install-completion", shell, **extra)
    assert done.returncode == 0, done.stderr
    script = (tmp_path / written[shell]).read_text("utf-8")
    assert f"_BEHAVIORTRACE_COMPLETE=complete_{shell}" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_itself_completes(tmp_path: Path) -> None:
    command = tmp_path / "behaviortrace"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m behaviortrace \"$@\"\n", "utf-8")
    command.chmod(0o755)
    script = python("-m", "behaviortrace", _BEHAVIORTRACE_COMPLETE="source_bash").stdout
    press = f"""{script}
COMP_WORDS=(behaviortrace run tin) COMP_CWORD=2
_behaviortrace_completion '{command}'
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", press], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [name for name in recipe.names() if name.startswith("tin")]
