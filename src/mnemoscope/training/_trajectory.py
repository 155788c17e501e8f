"""The trajectory of the parameters during training, for studies of landscapes and distances."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, write_atomic
from mnemoscope.training._snapshots import read_tensors, recorded_updates


def record_parameters(folder: Path, update: int, model: nn.Module) -> None:
    """Write all parameters as one vector, in the order of `model.parameters()`."""
    make_folder(folder)
    vector = parameters_to_vector(model.parameters()).detach().cpu()
    write_atomic(folder / f"{update:08d}.safetensors", safetensors.torch.save({"parameters": vector}))


def read_trajectory(folder: Path) -> tuple[list[int], Tensor]:
    """Return the recorded updates, and the parameters after each of them (updates, parameters)."""
    updates = recorded_updates(folder)
    if not updates:
        raise MnemoscopeError(f"{folder} holds no record of the parameters; train with record-every")
    return updates, torch.stack([read_parameters(folder, update) for update in updates])


def read_parameters(folder: Path, update: int) -> Tensor:
    """Return the parameters after one update (parameters,)."""
    path = folder / f"{update:08d}.safetensors"
    tensors = read_tensors(path)
    if "parameters" not in tensors:
        raise MnemoscopeError(f"{path} is not a record of parameters")
    return tensors["parameters"]
