"""What a run records about itself: recipe, seeds, package versions, platform."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from behaviortrace.errors import BehaviorTraceError
from behaviortrace.recipe import Recipe
from behaviortrace.run.jsonable import jsonable
from behaviortrace.run.manifest import Manifest

PACKAGES = (
    "behaviortrace",
    "accelerate",
    "datasets",
    "numba",
    "numpy",
    "peft",
    "polars",
    "pyarrow",
    "reasoning-gym",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
)
"""Packages whose versions are recorded."""

MERGED = ("meta", "notes", "seeds")
"""Manifest fields that an update merges key by key."""

REPLACED = ("status", "recipe", "sketch")
"""Manifest fields that an update replaces."""


def first_manifest(recipe: Recipe | None, meta: Mapping[str, Any] | None) -> Manifest:
    """The manifest of a run in which nothing has happened yet."""
    manifest = Manifest(
        created=now(),
        packages=package_versions(),
        platform=platform_facts(),
        meta=jsonable(meta or {}, "meta"),
    )
    if recipe is None:
        return manifest
    return manifest.model_copy(
        update={
            "recipe": recipe.model_dump(mode="json"),
            "preregistration": recipe.preregistration(),
            "sketch": recipe.sketch.model_dump(mode="json"),
            "seeds": {
                "run": recipe.seed,
                "sketch": recipe.sketch.seed,
                "draws": recipe.draw.seeds,
                "evaluate": recipe.evaluate.seed,
            },
        }
    )


def updated(manifest: Manifest, fields: Mapping[str, Any]) -> Manifest:
    """The manifest with fields changed; see :meth:`Run.update`.

    Raises:
        BehaviorTraceError: a field that may not be set, or a value it cannot take.
    """
    unknown = sorted(set(fields) - {*MERGED, *REPLACED})
    if unknown:
        raise BehaviorTraceError(
            f"manifest field {unknown[0]!r} cannot be set; use one of "
            f"{', '.join((*REPLACED, *MERGED))}"
        )
    plain = {}
    for name, value in fields.items():
        settings = value.model_dump(mode="json") if isinstance(value, Recipe) else value
        plain[name] = jsonable(settings, name)
        if name in MERGED and isinstance(plain[name], dict):
            plain[name] = {**getattr(manifest, name), **plain[name]}
    try:
        return Manifest.model_validate({**manifest.model_dump(), **plain})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise BehaviorTraceError(
            f"manifest field {where!r}: {problem['msg']} (got {problem['input']!r})"
        ) from error


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def package_versions() -> dict[str, str]:
    """Versions of the installed packages that shape a run."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def platform_facts() -> dict[str, Any]:
    """The kind of machine; nothing that identifies it."""
    facts: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
    torch = sys.modules.get("torch")  # not imported for this alone: it takes seconds
    if torch is not None:
        cuda = torch.cuda.is_available()
        facts["accelerator"] = torch.cuda.get_device_name() if cuda else "cpu"
    return facts
