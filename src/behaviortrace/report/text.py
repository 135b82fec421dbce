"""Text a model wrote, made safe to show: escaped, and with nothing invisible left in it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from markupsafe import Markup, escape

DASH = "—"
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_KEPT = {"\n", "\t"}
_LOOK_LIKE_NOTHING = {"\u115f", "\u1160", "\u2800", "\u3164", "\uffa0", "\u034f"}


def hidden(character: str) -> bool:
    """Whether a character would be invisible, reorder the text round it, or break the page.

    True for control characters (newline and tab excepted), bidirectional overrides, zero-width and
    other format characters, lone surrogates, private and unassigned code points, line and
    paragraph separators, and the fillers that are drawn as nothing.
    """
    if character in _KEPT:
        return False
    return unicodedata.category(character) in _HIDDEN or character in _LOOK_LIKE_NOTHING


def code_point(character: str) -> str:
    """The character by number, as shown in its place.

    Example:
        >>> code_point("\\u202e")
        '⟨U+202E⟩'
    """
    return f"⟨U+{ord(character):04X}⟩"


def visible(text: str) -> str:
    """The text with every hidden character shown by its number; not yet escaped for HTML.

    Example:
        >>> visible("a\\x00b\\u202ec")
        'a⟨U+0000⟩b⟨U+202E⟩c'
    """
    return "".join(code_point(c) if hidden(c) else c for c in text)


def finalize(value: Any) -> Any:
    """What the template engine applies to every value before it escapes it."""
    if value is None:
        return DASH
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def marked(text: str, spans: Iterable[tuple[int, int]] = (), limit: int = 1200) -> Markup:
    """Escaped HTML of a text, its spans inside ``<mark>``, hidden characters made visible.

    Args:
        text: anything.
        spans: half-open character spans of ``text``; sorted and merged here.
        limit: characters shown; how many were left out is said.

    Example:
        >>> str(marked("<b>QZXBT", [(3, 8)]))
        '&lt;b&gt;<mark>QZXBT</mark>'
    """
    shown = text[:limit]
    pieces: list[Markup] = []
    for start, end, inside in _segments(len(shown), spans):
        safe = _shown(shown[start:end])
        pieces.append(Markup("<mark>{}</mark>").format(safe) if inside else safe)
    if len(text) > limit:
        pieces.append(
            Markup('<span class="cut"> … {} more characters</span>').format(len(text) - limit)
        )
    return Markup("").join(pieces)


def _segments(length: int, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Cut [0, length) at the spans; yields (start, end, inside a span), empty pieces left out."""
    at = 0
    for start, end in sorted(spans):
        start, end = max(start, at), min(end, length)
        if start >= end:
            continue
        if at < start:
            yield at, start, False
        yield start, end, True
        at = end
    if at < length:
        yield at, length, False


def _shown(text: str) -> Markup:
    """Escaped, then hidden characters set off in a span of their own."""
    return Markup("").join(
        Markup('<span class="hidden">{}</span>').format(code_point(c)) if hidden(c) else escape(c)
        for c in text
    )
