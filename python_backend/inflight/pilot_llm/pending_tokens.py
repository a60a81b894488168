"""The token of each row, chosen on the device, and on its way from there to the host.

device   logits -> ids -----------------> the next step may read them here
                     \\-> page-locked memory
host                        wait() -----> and here, once they have arrived
"""

from collections.abc import Sequence

import torch

from pilot_llm.draw import draw_on_device, sent
from pilot_llm.sample_row import SampleRow
from pilot_llm.sampler import best_of_rows, is_usable


class PendingTokens:
    """`ids` [S] stay on the device; those of rows that are not finite are of the vocabulary, and mean nothing."""

    @torch.inference_mode()
    def __init__(self, logits: torch.Tensor, rows: Sequence[SampleRow], num_pending: int) -> None:
        """`rows` leave their tokens (`SampleRow.leaves_token`); `num_pending` of each are not on the host yet."""
        self.ids, best = best_of_rows(logits)
        usable = is_usable(best)
        if drawn := [index for index, row in enumerate(rows) if not row.params.is_greedy]:
            index = sent(torch.tensor(drawn), logits.device)
            chosen, finite_rows = (logits, usable) if len(drawn) == len(rows) else (logits[index], usable[index])
            # A row that is not finite would be drawn from outside the vocabulary.
            finite = torch.where(finite_rows.unsqueeze(1), chosen, 0.0)
            self.ids[index] = draw_on_device(finite, [rows[place] for place in drawn], num_pending)
        checked = torch.where(usable, self.ids, -1)
        self._arrived: torch.cuda.Event | None = None
        if checked.device.type == "cuda":
            self._on_host = torch.empty(checked.shape, dtype=checked.dtype, pin_memory=True)
            self._on_host.copy_(checked, non_blocking=True)
            self._arrived = torch.cuda.current_stream(checked.device).record_event()
        else:
            self._on_host = checked

    def wait(self) -> list[int]:
        """The ids; -1 for a row that is not finite."""
        if self._arrived is not None:
            self._arrived.synchronize()
        ids: list[int] = self._on_host.tolist()
        return ids
