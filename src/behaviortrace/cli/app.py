"""The `behaviortrace` application: enrols the commands and turns errors into one line."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

import typer
from typer.exceptions import TyperException

from behaviortrace.cli import (
    bench,
    judge,
    leave_out,
    models,
    pipeline,
    pitfall,
    plan,
    stages,
    sweep,
)
from behaviortrace.cli.doctor import doctor
from behaviortrace.errors import BehaviorTraceError
from behaviortrace.train.allocator import keep_freed_memory

app = typer.Typer(
    name="behaviortrace",
    help="Which rollouts taught a model its behaviour, and how to know the answer is real.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"behaviortrace {version('behaviortrace')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Settings of every command."""
    if debug:
        os.environ["BEHAVIORTRACE_DEBUG"] = "1"


app.command("recipes")(pipeline.recipes)
app.command("run")(pipeline.run)
app.command("sweep")(sweep.sweep)
app.command("merge")(sweep.merge)
app.command("export")(sweep.export)
app.command("plan")(plan.plan)
app.command("draw")(stages.draw)
app.command("target")(stages.target)
app.command("score")(stages.score)
app.command("evaluate")(stages.evaluate)
app.command("check")(stages.check)
app.command("report")(stages.report)
app.command("leave-out")(leave_out.leave_out)
app.command("verify")(stages.verify)
app.command("doctor")(doctor)
app.command("auc")(judge.auc)
app.command("precision")(judge.precision)
app.add_typer(bench.app, name="bench")
app.add_typer(models.app, name="models")
app.add_typer(pitfall.app, name="pitfall")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit code 2 and one line on stderr for what the user can mend."""
    given = sys.argv[1:] if arguments is None else arguments
    keep_freed_memory()
    try:
        code = app(args=given or ["--help"], standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (typer.Abort, KeyboardInterrupt):
        _say("interrupted; a run goes on with --resume")
        sys.exit(130)
    except TyperException as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        _say(f"{' '.join(message.split()).rstrip('.')}; --help tells what there is")
        sys.exit(2)
    except BehaviorTraceError as error:
        if os.environ.get("BEHAVIORTRACE_DEBUG"):
            raise
        _say(" ".join(str(error).split()))
        sys.exit(2)


def _say(line: str) -> None:
    print(f"behaviortrace: {line}", file=sys.stderr)
