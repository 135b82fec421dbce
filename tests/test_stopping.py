"""Long commands that are stopped: exit code, one line, and the handler put back."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import typer

from behaviortrace.cli.stopping import told_how_to_go_on


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_a_signal_is_a_line_and_an_exit_code(
    number: signal.Signals, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, cleaned = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(typer.Exit) as stop, told_how_to_go_on(lambda: "do this"):
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            cleaned.append(True)
    assert stop.value.exit_code == code and cleaned
    assert capsys.readouterr().err == f"behaviortrace: {said}; do this\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_else_is_caught_and_a_thread_may_work() -> None:
    with pytest.raises(ZeroDivisionError), told_how_to_go_on(lambda: "do this"):
        raise ZeroDivisionError
    found = []

    def work() -> None:
        with told_how_to_go_on(lambda: "do this"):
            found.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [1]
