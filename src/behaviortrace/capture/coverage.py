"""Which trainable parameters capture covers, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from behaviortrace.capture.layout import Layout
from behaviortrace.capture.rerun import RerunTap
from behaviortrace.capture.rules import Tap
from behaviortrace.capture.taps import rule_for
from behaviortrace.errors import BehaviorTraceError

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


@dataclass(frozen=True)
class _User:
    """A module's method, and modules whose parameters it uses itself."""

    module: nn.Module
    owners: list[nn.Module]
    method: str = "forward"

    def places(self) -> list[Place]:
        return [(owner, name) for owner in self.owners for name in _trainable(owner)]


def cover(model: nn.Module, layout: Layout, allow_uncovered: Collection[str] = ()) -> Coverage:
    """Choose a tap for every trainable parameter: a rule where one applies, else a rerun.

    Args:
        model: the model.
        layout: of its trainable parameters.
        allow_uncovered: names of parameters that are left alone unless a rule applies.
    """
    taps: list[Tap] = []
    special = _of_peft(model)
    used = {id(owner) for user in special for owner in user.owners}
    for name, module in model.named_modules():
        own = _trainable(module)
        if own and id(module) not in used:
            rule = rule_for(module, name, own)
            taps += [] if rule is None else [rule]
    ruled = {id(p) for tap in taps for p in tap.parameters()}
    names = {id(module): name for name, module in model.named_modules()}
    others = _others(model, used | {id(tap.module) for tap in taps})
    for user in [*special, *others]:
        slots = {place: layout.slot(place[0]._parameters[place[1]]) for place in user.places()}
        left = {place: s.name for place, s in slots.items() if s and s.name not in allow_uncovered}
        if left:
            unique = list(dict.fromkeys(left.values()))
            name = names[id(user.module)]
            taps.append(RerunTap(user.module, name, list(left), unique, user.method))
    covered = {id(p): p for tap in taps for p in tap.parameters()}
    pairs = zip(layout.slots, layout.parameters, strict=True)
    return Coverage(
        taps,
        [p for key, p in covered.items() if key not in ruled],
        [slot.name for slot, p in pairs if id(p) not in covered],
    )


def refuse_missing(uncovered: Collection[str], allowed: Collection[str]) -> None:
    """Refuse a model with parameters that are not covered.

    Args:
        uncovered: names of its parameters that nothing covers.
        allowed: names of those that may be.

    Raises:
        BehaviorTraceError: the first of the others, by name.
    """
    missing = [name for name in uncovered if name not in allowed]
    if missing:
        raise BehaviorTraceError(
            f"no capture rule covers the trainable parameter {missing[0]!r}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}; freeze it or pass "
            "allow_uncovered=[...] to train without its gradient being recorded"
        )


def _of_peft(model: nn.Module) -> list[_User]:
    """What of PEFT uses parameters of modules that never run on rows.

    DoRA's magnitude layer calls the two matrices itself, for the norm on an identity matrix too; on
    an embedding it only scales magnitudes for its parent. A prompt is made once and repeated.
    """
    found: list[_User] = []
    parent: Any
    for parent in model.modules():
        layers = dict((getattr(parent, "lora_magnitude_vector", None) or {}).items())
        of_parent = [layer for key, layer in layers.items() if key not in parent.lora_A]
        for key, layer in layers.items():
            if key in parent.lora_A:
                found.append(_User(layer, [layer, parent.lora_A[key], parent.lora_B[key]]))
        if of_parent:
            found.append(_User(parent, [*_with_containers(parent), *of_parent]))
        encoders = getattr(parent, "prompt_encoder", None)
        if isinstance(encoders, nn.ModuleDict) and _repeats_prompts(parent):
            found.append(_User(parent, list(encoders.modules()), "get_prompt"))
    return found


def _repeats_prompts(parent: Any) -> bool:
    """Whether a prompt is made once; the encoder of a prefix, a cache of keys, runs on rows."""
    kind = getattr(parent, "active_peft_config", None)
    return kind is not None and kind.peft_type not in ("PREFIX_TUNING", "CARTRIDGE")


def _others(model: nn.Module, taken: set[int]) -> Iterator[_User]:
    """Modules that run, each with itself and the containers in it that never run.

    A container that several modules hold belongs to the innermost.

    Args:
        model: the model.
        taken: identities of modules whose parameters are taken care of.
    """
    running = [m for m in model.modules() if _runs(m) and id(m) not in taken]
    held = {id(m): [o for o in _with_containers(m) if id(o) not in taken] for m in running}
    holders: dict[int, set[int]] = {}
    for module in running:
        for owner in held[id(module)]:
            holders.setdefault(id(owner), set()).add(id(module))
    for module in running:
        owners = [
            owner
            for owner in held[id(module)]
            if len(holders[id(owner)]) == 1
            or not (holders[id(owner)] - {id(module)}) & {id(m) for m in module.modules()}
        ]
        yield _User(module, owners)


def _trainable(module: nn.Module) -> list[str]:
    return [n for n, p in module._parameters.items() if p is not None and p.requires_grad]


def _runs(module: nn.Module) -> bool:
    """Whether a module's parameters are used in a forward of its own.

    A convolution's are often not: models hand its weight to kernels. It is its parent's then, which
    is right where the convolution runs too.
    """
    if isinstance(module, _ConvNd):
        return False
    return type(module).forward is not nn.Module.forward or "forward" in module.__dict__


def _with_containers(module: nn.Module) -> Iterator[nn.Module]:
    yield module
    for child in module.children():
        if not _runs(child):
            yield from _with_containers(child)
