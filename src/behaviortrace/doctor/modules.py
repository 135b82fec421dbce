"""Where the gradient's energy lies: by kind of module and by layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np
from torch import nn

from behaviortrace.capture.layout import Layout, Slot

_EMBEDDINGS = ("embed_tokens", "wte", "wpe", "embeddings", "embed_in", "word_embeddings")
_ATTENTION = {
    "attention q": ("q_proj", "query"),
    "attention k": ("k_proj", "key"),
    "attention v": ("v_proj", "value"),
    "attention qkv": ("c_attn", "qkv_proj", "query_key_value"),
    "attention o": ("o_proj", "out_proj"),
}
_MLP = ("mlp", "gate_proj", "up_proj", "down_proj", "fc1", "fc2", "experts")
ORDER = ("embedding", "embedding and head", *_ATTENTION, "mlp", "norms", "head", "other")


def kind(name: str, tied: bool = False) -> str:
    """The kind of module a parameter belongs to, by its name.

    Args:
        name: as in ``named_parameters()``; adapters count as the module they adapt.
        tied: whether it is the weight of both the embedding and the head.

    Example:
        >>> kind("model.layers.3.self_attn.q_proj.lora_A.default.weight")
        'attention q'
    """
    parts = name.split(".")
    if tied:
        return "embedding and head"
    if any("norm" in part or part.startswith("ln_") for part in parts):
        return "norms"
    if "lm_head" in parts or "embed_out" in parts:
        return "head"
    if any(part in _EMBEDDINGS for part in parts):
        return "embedding"
    for found, names in _ATTENTION.items():
        if any(part in names for part in parts):
            return found
    if any(part in _MLP for part in parts):
        return "mlp"
    attention = any("attn" in part or "attention" in part for part in parts)
    return "attention o" if attention and ("c_proj" in parts or "dense" in parts) else "other"


def layer(name: str) -> int | None:
    """The layer a parameter belongs to: the first number in its name; None outside the layers."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def coverage(model: nn.Module, grams: np.ndarray, uncovered: Collection[str]) -> dict[str, Any]:
    """Shares of the trainable parameters and of the gradient's energy, by kind and by layer.

    Energy is the squared gradient norm summed over the rollouts.

    Args:
        model: the model.
        grams: (parameters, n, n) inner products of n rollouts' gradients within each parameter.
        uncovered: names of the trainable parameters without a capture rule.

    Returns:
        ``energy`` and ``parameters``: covered shares; ``worst_rollout``: the covered share of the
        energy of the rollout where it is least; ``uncovered``: name, number of coordinates and
        share of energy of each; ``modules`` and ``layers``: the tables.
    """
    layout = Layout(model)
    energy = np.einsum("pii->pi", grams).clip(min=0)
    total = energy.sum()
    share = energy.sum(1) / total
    covered = np.array([slot.name not in uncovered for slot in layout.slots])
    size = np.array([slot.size for slot in layout.slots])
    tied = _tied_name(model, layout)

    def table(key: Callable[[Slot], Hashable], order: Callable[[Any], Any]) -> list[dict[str, Any]]:
        keys = [key(slot) for slot in layout.slots]
        rows = []
        for one in sorted(set(keys), key=order):
            of = np.array([k == one for k in keys])
            rows.append(
                {
                    "of": one,
                    "parameters": int(size[of].sum()),
                    "share": float(size[of].sum() / size.sum()),
                    "energy": float(share[of].sum()),
                    "covered_energy": float(share[of & covered].sum()),
                    "covered": bool(covered[of].all()),
                }
            )
        return rows

    return {
        "energy": float(share[covered].sum()),
        "parameters": float(size[covered].sum() / size.sum()),
        "worst_rollout": float((energy[covered].sum(0) / energy.sum(0)).min()),
        "uncovered": _uncovered(layout.slots, share, covered),
        "modules": table(lambda slot: kind(slot.name, slot.name == tied), ORDER.index),
        "layers": table(lambda slot: layer(slot.name), lambda one: -1 if one is None else one),
    }


def _uncovered(
    slots: Sequence[Slot], share: np.ndarray, covered: np.ndarray
) -> list[dict[str, Any]]:
    return [
        {"name": slot.name, "parameters": slot.size, "energy": float(part)}
        for slot, part, known in zip(slots, share, covered, strict=True)
        if not known
    ]


def _tied_name(model: nn.Module, layout: Layout) -> str | None:
    """Name of the weight that the embedding and the head share, if it trains."""
    first, last = (
        getattr(getattr(model, f"get_{end}_embeddings")(), "weight", None)
        for end in ("input", "output")
    )
    slot = layout.slot(first) if first is last and isinstance(first, nn.Parameter) else None
    return None if slot is None else slot.name
