"""Weights and inputs from files, none of which can run code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import read_bytes
from mnemoscope.training._checkpoint import fit_tensors

WRAPPED = ("state_dict", "model_state_dict", "model", "module", "weights")
PREFIXES = ("module.", "_orig_mod.", "model.")  # of DistributedDataParallel, torch.compile, our own checkpoints


def load_weights(model: Any, path: Path) -> None:
    """Put a checkpoint's tensors into a model, or say in one line why they do not fit."""
    if not isinstance(model, nn.Module):
        raise MnemoscopeError(f"a {type(model).__name__} is no torch module: it cannot take the weights in {path}")
    found, expected = _unwrapped(read_tensors(path), path), model.state_dict()
    found = _renamed(found, set(expected))
    fit_tensors(found, expected, str(path))
    model.load_state_dict(found)


def read_tensors(path: Path) -> Any:
    """What a .safetensors or a torch file holds; a torch file is read by `weights_only`, which runs no code."""
    if path.suffix == ".safetensors":
        data = read_bytes(path)
        try:
            return safetensors.torch.load(data)
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise MnemoscopeError(f"{path} is not a safetensors file: {_first(error)}") from error
    if not path.is_file():
        raise MnemoscopeError(f"cannot read {path}: there is no such file")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise MnemoscopeError(
            f"{path} holds more than tensors and could run code when loaded, so it is refused; save the weights alone, "
            "by torch.save(model.state_dict(), PATH) or safetensors.torch.save_file(model.state_dict(), PATH)"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MnemoscopeError(f"{path} is not a torch file: {_first(error)}") from error


def read_inputs(path: Path) -> Tensor:
    """Sequences from an .npy, .pt or .safetensors file: the only tensor in it, or the one named `inputs`."""
    if path.suffix == ".npy":
        try:
            return torch.from_numpy(np.load(path, allow_pickle=False))
        except (OSError, ValueError, TypeError, EOFError) as error:
            raise MnemoscopeError(f"cannot read {path} as an array: {_first(error)}") from error
    if path.suffix not in (".pt", ".pth", ".safetensors"):
        raise MnemoscopeError(f"inputs = {str(path)!r} is not allowed; it must end in .npy, .pt or .safetensors")
    found = read_tensors(path)
    if isinstance(found, Mapping):
        tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        found = tensors.get("inputs", next(iter(tensors.values())) if len(tensors) == 1 else None)
    if not isinstance(found, Tensor):
        raise MnemoscopeError(f"{path} must hold one tensor of sequences, or one named 'inputs'")
    return found


def _unwrapped(found: Any, path: Path) -> dict[str, Tensor]:
    """The tensors by name, also where they lie inside a training checkpoint."""
    for name in WRAPPED:
        inner = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(inner, Mapping):
            return _unwrapped(inner, path)
    tensors = {k: v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, Mapping) else {}
    if not tensors:
        raise MnemoscopeError(f"{path} holds no weights: it must hold tensors by name, as a state_dict does")
    return tensors


def _renamed(found: dict[str, Tensor], expected: set[str]) -> dict[str, Tensor]:
    """Without the prefix that a wrapper put before every name, where the rest then fits better."""
    for prefix in PREFIXES:
        bare = {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}
        if bare and len(expected & set(bare)) > len(expected & set(found)):
            return bare
    return found


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
