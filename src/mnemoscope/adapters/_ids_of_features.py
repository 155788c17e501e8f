"""The ids that features stand for, where a model does more with its ids than look them up.

A model may compare its ids with a padding, or forget at a separator. Run on features alone it must still see the right
ids: those whose features they are, also where a scope cuts sequences or joins the start of one to the end of another.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_AT_ONCE = 1 << 22  # distances in one table


class IdsOfFeatures:
    """Finds the id of each row of features, among the ids that were looked up.

    Args:
        ids: of any shape.
        features: ids.shape + (d,), what was looked up with them.
    """

    def __init__(self, ids: Tensor, features: Tensor) -> None:
        self._ids, place = torch.unique(ids, return_inverse=True)
        flat = features.detach().flatten(0, -2)
        self._rows = flat.new_zeros(len(self._ids), flat.shape[-1])
        self._rows[place.flatten()] = flat

    def of(self, features: Tensor, *likely: Tensor) -> Tensor:
        """Return the ids (...) of features (..., d), where those of `likely` that fit best are not right.

        Features that belong to no id, as changed ones, keep the likely id: a mask made from the ids stays as it was.
        """
        places = [torch.searchsorted(self._ids, ids.contiguous()) for ids in likely]
        wrong = [(self._rows[at] != features.detach()).any(-1) for at in places]
        best = min(range(len(likely)), key=lambda each: int(wrong[each].sum()))
        if not bool(wrong[best].any()):
            return likely[best]
        found = likely[best].clone()
        distance, nearest = self._nearest(features[wrong[best]])
        found[wrong[best]] = torch.where(distance == 0, nearest, found[wrong[best]])
        return found

    def nearest(self, features: Tensor) -> Tensor:
        """Return the ids (n,) whose features are nearest to these, (n, d)."""
        return self._nearest(features)[1]

    def _nearest(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distances (n,) of features (n, d) from the nearest ones, and the ids (n,) of these."""
        rows = self._rows.to(torch.float32) if self._rows.dtype.itemsize < 4 else self._rows
        parts = features.detach().to(rows).split(max(1, MOST_AT_ONCE // len(rows)))
        # Without products of matrices, so that the distance of equal rows is exactly 0.
        exact = "donot_use_mm_for_euclid_dist"
        tables = [torch.cdist(part, rows, compute_mode=exact).min(1) for part in parts]
        return torch.cat([table.values for table in tables]), self._ids[torch.cat([table.indices for table in tables])]
