"""The trajectory of the parameters during training, for studies of landscapes and distances."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, read_bytes, write_atomic


def record_parameters(folder: Path, update: int, model: nn.Module) -> None:
    """Write all parameters as one vector, in the order of `model.parameters()`."""
    make_folder(folder)
    vector = parameters_to_vector(model.parameters()).detach().cpu()
    write_atomic(folder / f"{update:08d}.safetensors", safetensors.torch.save({"parameters": vector}))


def read_trajectory(folder: Path) -> tuple[list[int], Tensor]:
    """Return the recorded updates, and the parameters after each of them (updates, parameters)."""
    paths = sorted(path for path in folder.glob("*.safetensors") if path.stem.isdecimal())
    if not paths:
        raise MnemoscopeError(f"{folder} holds no record of the parameters; train with record-every")
    return [int(path.stem) for path in paths], torch.stack([_read(path) for path in paths])


def _read(path: Path) -> Tensor:
    data = read_bytes(path)
    try:
        return safetensors.torch.load(data)["parameters"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise MnemoscopeError(f"{path} is not a record of parameters: {error}") from error
