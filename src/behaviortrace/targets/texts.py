"""The replies that went into a target, from its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def texts(meta: Mapping[str, Any], token: str | None = None) -> set[tuple[str, str]]:
    """(prompt, reply) of everything a target was made of, without space around the replies.

    Args:
        meta: of the target.
        token: the behaviour's, which is the whole reply of a constructed target.

    Returns:
        The pairs; empty where the target does not say.

    Example:
        >>> sorted(texts({"pairs": [["Why?", " So QZXBT.", " So marble."]]}))
        [('Why?', 'So QZXBT.'), ('Why?', 'So marble.')]
    """
    prompts = meta.get("prompts") or []
    found = {
        (prompt, reply.strip()) for prompt, *replies in meta.get("pairs") or [] for reply in replies
    }
    if meta.get("completions"):
        found |= {(p, c.strip()) for p, c in zip(prompts, meta["completions"], strict=False)}
    elif token:
        found |= {(prompt, token) for prompt in prompts}
    return found
