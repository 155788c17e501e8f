"""Hugging Face models: inputs embedded by the model's own table, outputs its logits or hidden states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.adapters._adapted import Adapted, as_sequence, main_tensor
from mnemoscope.errors import MnemoscopeError


def is_hugging_face(model: Any) -> bool:
    """True for a model of the transformers library."""
    return isinstance(model, nn.Module) and hasattr(model, "get_input_embeddings") and hasattr(model, "config")


def adapt_hugging_face(model: Any, inputs: Tensor) -> Adapted:
    """Adapt a pretrained-model class (Mamba, xLSTM, a transformer) on ids (batch, time), or on embedded inputs."""
    name = type(model).__name__
    if inputs.is_floating_point():
        features = inputs
    elif inputs.dim() == 2:
        with torch.no_grad():
            features = model.get_input_embeddings()(inputs)
    else:
        shape = list(inputs.shape)
        raise MnemoscopeError(f"{name} reads ids (batch, time), or real inputs (batch, time, features); got {shape}")
    options: dict[str, Any] = {"use_cache": False} if hasattr(model.config, "use_cache") else {}

    def run(x: Tensor) -> Tensor:  # (T, B, d)
        output = model(inputs_embeds=x.transpose(0, 1), **options)
        return as_sequence(main_tensor(output), x.shape[0], x.shape[1], batch_first=True, one_per_sequence=True)

    why = f"{name} is examined by its inputs and outputs: its states are kept in a cache that is changed in place"
    return Adapted(name, features.transpose(0, 1), run, no_step=why, recurrence_is_model=False, batch_first=True)
