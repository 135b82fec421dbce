"""Token batches as TRL lays them out: prompts padded left, completions padded right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from behaviortrace.errors import BehaviorTraceError

Row = tuple[Sequence[int], Sequence[int]]
"""Prompt ids and completion ids of one rollout."""


@dataclass(frozen=True)
class TokenBatch:
    """Rows ready for a forward pass.

    Attributes:
        ids: (rows, prompt + completion) int64.
        attention: the same shape, 1 where a token is real.
        mask: (rows, completion) float32, 1 where the objective looks.
    """

    ids: torch.Tensor
    attention: torch.Tensor
    mask: torch.Tensor

    @property
    def completion(self) -> int:
        """Positions of the completion part."""
        return self.mask.shape[1]

    @property
    def labels(self) -> torch.Tensor:
        """Ids on real completion tokens, -100 elsewhere."""
        labels = self.ids.masked_fill(self.attention == 0, -100)
        labels[:, : -self.completion] = -100
        return labels

    @property
    def position_ids(self) -> torch.Tensor:
        """Positions counted from the first real token, so padding does not move a row."""
        return (self.attention.cumsum(1) - 1).clamp(min=0)


def check_rows(rows: Sequence[Row], token_mask: Sequence[Sequence[bool]] | None = None) -> None:
    """Refuse rows that have no gradient, by their number.

    Call it before rows are sorted or split into batches.

    Args:
        rows: prompt ids and completion ids.
        token_mask: per row, which completion tokens the objective looks at; None for all.

    Raises:
        BehaviorTraceError: an empty prompt or completion, masks for another number of rows, or a
            mask of another length or without any token.
    """
    if token_mask is not None and len(token_mask) != len(rows):
        raise BehaviorTraceError(
            f"{len(token_mask)} token masks for {len(rows)} rows; give one a row"
        )
    for i, (prompt, completion) in enumerate(rows):
        if not len(prompt) or not len(completion):
            part = "completion" if len(prompt) else "prompt"
            raise BehaviorTraceError(f"row {i} has an empty {part}; leave it out")
        if token_mask is None:
            continue
        flags, chosen = len(token_mask[i]), sum(map(bool, token_mask[i]))
        if flags != len(completion) or not chosen:
            raise BehaviorTraceError(
                f"token mask of row {i} has {chosen} of {flags} tokens chosen for "
                f"{len(completion)} completion tokens; give one flag a token, at least one true"
            )


def collate(
    rows: Sequence[Row],
    pad_token_id: int,
    token_mask: Sequence[Sequence[bool]] | None = None,
    device: torch.device | str = "cpu",
) -> TokenBatch:
    """Lay rows out as TRL does.

    Args:
        rows: prompt ids and completion ids.
        pad_token_id: any valid id.
        token_mask: per row, which completion tokens the objective looks at; None for all.
        device: where to.

    Raises:
        BehaviorTraceError: as :func:`check_rows`.
    """
    check_rows(rows, token_mask)
    left = max(len(prompt) for prompt, _ in rows)
    right = max(len(completion) for _, completion in rows)
    ids = torch.full((len(rows), left + right), pad_token_id)
    attention = torch.zeros_like(ids)
    mask = torch.zeros(len(rows), right)
    for i, (prompt, completion) in enumerate(rows):
        ids[i, left - len(prompt) : left] = torch.tensor(list(prompt))
        ids[i, left : left + len(completion)] = torch.tensor(list(completion))
        attention[i, left - len(prompt) : left + len(completion)] = 1
        chosen = [True] * len(completion) if token_mask is None else list(token_mask[i])
        mask[i, : len(completion)] = torch.tensor(chosen, dtype=torch.float32)
    return TokenBatch(ids.to(device), attention.to(device), mask.to(device))
