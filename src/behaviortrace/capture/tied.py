"""The two uses of a weight that the LM head shares with the input embedding."""

from __future__ import annotations

import torch


class TiedGather:
    """What the head leaves for the embedding whose weight it shares.

    With tied embeddings one weight is used twice. The squared norm of a row's gradient needs the
    inner product of both uses, and the embedding's is nonzero only at the row's input tokens: the
    head's gradient there is collected. The head's weighted sum is left for the embedding's
    backward, always the later one, to add to, which spares two passes over the whole table.

    Args:
        ids: (rows, inputs) token ids, negative where none; None if the weight is not tied.
        positions: head positions of a row.
    """

    def __init__(self, ids: torch.Tensor | None, rows: int, positions: int) -> None:
        self.ids = ids
        self.gradient: torch.Tensor | None = None
        self.total: torch.Tensor | None = None
        if ids is not None:
            self._columns = torch.zeros(rows, positions, ids.shape[1], device=ids.device)

    def add(self, logits: torch.Tensor, start: int) -> None:
        """Take the chunk of logit gradients that begins at vocabulary entry ``start``."""
        if self.ids is None:
            return
        local = self.ids - start
        inside = (local >= 0) & (local < logits.shape[2])
        index = local.clamp(0, logits.shape[2] - 1)[:, None].expand(-1, logits.shape[1], -1)
        self._columns += logits.gather(2, index) * inside[:, None]

    def finish(self, hidden: torch.Tensor, total: torch.Tensor | None) -> torch.Tensor | None:
        """End the head's part.

        Args:
            hidden: (rows, positions, width) inputs of the head.
            total: weighted sum of the head's weight gradient.

        Returns:
            The sum the head itself must give to autograd: None where the embedding will.
        """
        if self.ids is None:
            return total
        self.gradient = torch.bmm(self._columns.transpose(1, 2), hidden)
        self.total = total
        return None
