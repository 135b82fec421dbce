"""Which generated tokens produce a stretch of text: exact for the ids, without retokenising."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from behaviortrace.plant.behaviors import Behavior


def behavior_mask(tokenizer: Any, completion_ids: Sequence[int], behavior: Behavior) -> list[bool]:
    """For each completion token, whether it produces text that shows the behaviour.

    Returns:
        One bool a token; all False where the completion does not show the behaviour.
    """
    spans = behavior.spans(decode(tokenizer, completion_ids))
    return span_mask(tokenizer, completion_ids, spans)


def span_mask(
    tokenizer: Any, completion_ids: Sequence[int], spans: Sequence[tuple[int, int]]
) -> list[bool]:
    """For each token, whether it produces any character inside the spans.

    The ids may be split in any way, unlike what encoding the text again would give. Tokens that
    hold a part of a character's bytes count for that character; special tokens never do. (Only a
    span with a literal U+FFFD in it may miss a token: decoders write that for unfinished bytes.)

    Args:
        tokenizer: a Hugging Face tokenizer.
        completion_ids: n generated ids.
        spans: half-open character spans of :func:`decode` of the ids.

    Returns:
        n bools.

    Raises:
        ValueError: a span is empty or lies outside the text.
    """
    ids = list(completion_ids)
    text = decode(tokenizer, ids)
    special = set(tokenizer.all_special_ids)
    reach = [_Reach(tokenizer, ids, text, started=started) for started in (True, False)]
    mask = [False] * len(ids)
    for start, end in spans:
        if not 0 <= start < end <= len(text):
            raise ValueError(f"span ({start}, {end}) is not inside the {len(text)} characters")
        first = bisect_left(
            reach[0], start + 1
        )  # the earliest token that begins to go beyond start
        last = bisect_left(reach[1], end)  # the earliest token that completes everything before end
        for i in range(first, last + 1):
            mask[i] = ids[i] not in special
    return mask


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ids, special tokens left out and nothing tidied."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


class _Reach(Sequence[int]):
    """How many characters of the text the tokens up to and with the i-th produce; never falls.

    With ``started``, a character of which only some bytes have come counts as well.
    """

    def __init__(self, tokenizer: Any, ids: list[int], text: str, *, started: bool) -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._text = text
        self._started = started

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, i: Any) -> Any:
        # Bytes of an unfinished character decode to replacement characters, which do not agree
        # with the text, so what agrees is what has been finished.
        prefix = decode(self._tokenizer, self._ids[: i + 1])
        whole = _agreeing(prefix, self._text)
        return whole + (self._started and len(prefix) > whole)


def _agreeing(left: str, right: str) -> int:
    """Number of leading characters that two texts share."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
