"""How many different ids a model reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mnemoscope.adapters._call import Forward, is_hugging_face
from mnemoscope.adapters._ids import Vocabulary, track
from mnemoscope.adapters._recurrent import has_step
from mnemoscope.adapters._step import IdStep


@torch.no_grad()
def find_vocabulary(model: Any) -> int | None:
    """Return how many different ids a model reads; None if it has no embedding, or does not look ids up in it.

    By its configuration if it is of the transformers library, else by the table in which it looks a few zeros up.
    """
    if is_hugging_face(model):
        reads_ids = getattr(model, "main_input_name", "") == "input_ids"
        return getattr(model.config, "vocab_size", None) if reads_ids else None
    if not isinstance(model, nn.Module) or not any(isinstance(module, nn.Embedding) for module in model.modules()):
        return None
    device = next(model.parameters()).device
    vocabulary = Vocabulary(8 * 2)
    try:
        ids = torch.zeros(8, 2, dtype=torch.int64, device=device)
        if has_step(model):
            vocabulary = IdStep(model, ids).vocabulary
        else:
            Forward(model, 8, 2, {})(track(ids, vocabulary), 8, 2)
    except Exception:  # it reads something else; its error is raised where it is run on real inputs
        return None
    rows = [lookup.width if lookup.table is None else len(lookup.table) for lookup, _ in vocabulary.lookups.values()]
    return min(rows, default=None)
