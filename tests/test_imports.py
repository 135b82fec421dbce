"""Modules of the package import one way."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

import behaviortrace

ROOT = Path(behaviortrace.__file__).parent


def modules(root: Path) -> dict[str, Path]:
    """Every module of a package, by its dotted name."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: set[str]) -> set[str]:
    """The known modules that one imports: at its top, for types alone, or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in known else str(node.module))
    return found & known


def graph(root: Path) -> dict[str, set[str]]:
    found = modules(root)
    return {name: imported(path, set(found)) - {name} for name, path in found.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = graph(ROOT)
    assert len(found) > 200 and "behaviortrace.capture.rules" in found["behaviortrace.capture.taps"]
    list(graphlib.TopologicalSorter(found).static_order())  # a CycleError names the circle


@pytest.mark.parametrize(
    "back",
    [
        "import pack.one",
        "from pack.one import x",
        "from pack import one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.one import x",
        "def late():\n    from pack.one import x",
    ],
)
def test_a_circle_is_found_wherever_the_import_is(back: str, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "__init__.py").write_text("")
    (pack / "one.py").write_text("from pack.two import y\nx = 1\n")
    (pack / "two.py").write_text(back + "\ny = 1\n")
    with pytest.raises(graphlib.CycleError, match=r"pack\.one"):
        list(graphlib.TopologicalSorter(graph(pack)).static_order())
