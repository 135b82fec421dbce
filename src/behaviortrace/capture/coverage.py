"""Which trainable parameters capture covers, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from behaviortrace.capture.layout import Layout
from behaviortrace.capture.rerun import RerunTap
from behaviortrace.capture.rules import Tap
from behaviortrace.capture.taps import rule_for

Place = tuple[nn.Module, str]
"""Where a parameter is found: a module, and the parameter's name in it."""


@dataclass(frozen=True)
class Coverage:
    """How a model's parameters are covered.

    Attributes:
        taps: what takes their gradients over.
        rerun: the parameters for which modules are run again, and nothing else.
        uncovered: names of the trainable parameters that nothing covers.
    """

    taps: list[Tap]
    rerun: list[nn.Parameter]
    uncovered: list[str]


def cover(model: nn.Module, layout: Layout, allow_uncovered: Collection[str] = ()) -> Coverage:
    """Choose a tap for every trainable parameter: a rule where one applies, else a rerun.

    Args:
        model: the model.
        layout: of its trainable parameters.
        allow_uncovered: names of parameters that are left alone unless a rule applies.
    """
    taps: list[Tap] = []
    names = {id(module): name for name, module in model.named_modules()}
    claimed = _shared_by_siblings(model)
    inside = {id(module) for group in claimed.values() for module in group}
    for name, module in model.named_modules():
        own = _trainable(module)
        if own and id(module) not in inside:
            rule = rule_for(module, name, own)
            taps += [] if rule is None else [rule]
    ruled = {id(p) for tap in taps for p in tap.parameters()}
    taken = {id(tap.module) for tap in taps}
    for module, places in _users(model, claimed, taken):
        left = {place: _slot_name(layout, place) for place in places}
        left = {p: n for p, n in left.items() if n is not None and n not in allow_uncovered}
        if left:
            slots = list(dict.fromkeys(n for n in left.values() if n is not None))
            taps.append(RerunTap(module, names[id(module)], list(left), slots))
    covered = {id(p): p for tap in taps for p in tap.parameters()}
    pairs = zip(layout.slots, layout.parameters, strict=True)
    return Coverage(
        taps,
        [p for key, p in covered.items() if key not in ruled],
        [slot.name for slot, p in pairs if id(p) not in covered],
    )


def _slot_name(layout: Layout, place: Place) -> str | None:
    owner, name = place
    parameter = owner._parameters[name]
    slot = None if parameter is None else layout.slot(parameter)
    return None if slot is None else slot.name


def _shared_by_siblings(model: nn.Module) -> dict[int, list[nn.Module]]:
    """Modules, by identity, that use the parameters of others which never run on rows.

    DoRA's magnitude layer calls the two matrices itself, for the norm on an identity matrix too. On
    an embedding it gives its parent the scaled magnitudes back.
    """
    found: dict[int, list[nn.Module]] = {}
    parent: Any  # of PEFT
    for parent in model.modules():
        for key, layer in (getattr(parent, "lora_magnitude_vector", None) or {}).items():
            if key in parent.lora_A:
                found[id(layer)] = [layer, parent.lora_A[key], parent.lora_B[key]]
            else:
                found.setdefault(id(parent), list(_with_containers(parent))).append(layer)
    return found


def _users(
    model: nn.Module, claimed: dict[int, list[nn.Module]], taken: set[int]
) -> Iterator[tuple[nn.Module, list[Place]]]:
    """Modules that run, each with the places of the parameters that it uses itself.

    Those are its own, and those of containers in it that never run. A container that several
    modules hold belongs to the innermost.
    """
    inside = {id(module) for group in claimed.values() for module in group}
    held: dict[int, list[Place]] = {}
    holders: dict[tuple[int, str], list[nn.Module]] = {}
    running = [m for m in model.modules() if _runs(m) and id(m) not in taken]
    for module in running:
        owners = claimed.get(id(module))
        if owners is None:
            owners = [] if id(module) in inside else list(_with_containers(module))
        held[id(module)] = [(owner, name) for owner in owners for name in _trainable(owner)]
        for owner, name in held[id(module)]:
            holders.setdefault((id(owner), name), []).append(module)
    for module in running:
        mine = []
        for owner, name in held[id(module)]:
            others = {id(m) for m in holders[id(owner), name]} - {id(module)}
            if not others or not others & {id(m) for m in module.modules()}:
                mine.append((owner, name))
        if mine:
            yield module, mine


def _trainable(module: nn.Module) -> list[str]:
    return [n for n, p in module._parameters.items() if p is not None and p.requires_grad]


def _runs(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward or "forward" in module.__dict__


def _with_containers(module: nn.Module) -> Iterator[nn.Module]:
    yield module
    for child in module.children():
        if not _runs(child):
            yield from _with_containers(child)
