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

from mnemoscope.errors import MnemoscopeError, first_line
from mnemoscope.files import read_bytes, require_regular_file
from mnemoscope.training import check_tensors_match

STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "module", "weights")
PREFIXES = ("module.", "_orig_mod.", "model.")  # of DistributedDataParallel, torch.compile, our own checkpoints


def load_weights(model: Any, path: Path) -> None:
    """Load a checkpoint's tensors into a model; a MnemoscopeError of one line says why they do not fit."""
    model.load_state_dict(read_weights(model, path))


def read_weights(model: Any, path: Path) -> dict[str, Tensor]:
    """Return a checkpoint's tensors by the names of a model's `state_dict()`; raise if they do not fit it."""
    if not isinstance(model, nn.Module):
        raise MnemoscopeError(f"a {type(model).__name__} is not a torch module: it cannot load the weights in {path}")
    expected = model.state_dict()
    tensors = _without_prefix(_find_state_dict(read_tensors(path), path), set(expected))
    for name in sorted(expected.keys() & tensors.keys()):
        kind, wanted = _kind(tensors[name]), _kind(expected[name])
        if kind != wanted:
            raise MnemoscopeError(f"{path}: {name} is {kind} tensor where this model has {wanted} one")
    check_tensors_match(tensors, expected, str(path))
    return tensors


def read_tensors(path: Path) -> Any:
    """Return what a .safetensors or a torch file holds; a torch file is read by `weights_only`, which runs no code."""
    if path.suffix == ".safetensors":
        data = read_bytes(path, follow=True)
        try:
            return safetensors.torch.load(data)
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise MnemoscopeError(f"{path} is not a safetensors file: {first_line(error)}") from error
    require_regular_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise MnemoscopeError(
            f"{path} holds more than tensors and could run code when loaded, so it is refused; save the weights alone, "
            "by torch.save(model.state_dict(), PATH) or safetensors.torch.save_file(model.state_dict(), PATH)"
        ) from error
    except Exception as error:  # a flipped byte makes the unpickler raise almost anything
        raise MnemoscopeError(f"{path} is not a torch file: {first_line(error)}") from error


def read_inputs(path: Path, name: str = "inputs") -> Tensor:
    """Return the inputs or targets in an .npy, .pt or .safetensors file: its only tensor, or the one of that name."""
    if path.suffix == ".npy":
        require_regular_file(path)
        try:
            return torch.from_numpy(np.load(path, allow_pickle=False))
        except Exception as error:  # numpy evaluates the header, and a broken one raises almost anything
            why = "" if "pickle" in str(error) else f": {first_line(error)}"  # numpy would advise to unpickle it
            raise MnemoscopeError(f"{path} is not an .npy file of numbers{why}") from error
    if path.suffix not in (".pt", ".pth", ".safetensors"):
        raise MnemoscopeError(f"{name} = {str(path)!r} is not allowed; it must end in .npy, .pt or .safetensors")
    content = read_tensors(path)
    if isinstance(content, Mapping):
        tensors = _tensors(content)
        only = next(iter(tensors.values())) if len(tensors) == 1 else None
        content = tensors.get(name, only)
    if not isinstance(content, Tensor):
        raise MnemoscopeError(f"{path} must hold one tensor of sequences, or one named {name!r}")
    if content.is_nested or content.is_meta:  # it has no shape, or no values
        raise MnemoscopeError(f"{path} holds {_kind(content)} tensor; save an ordinary tensor")
    return content


def _kind(tensor: Tensor) -> str:
    """Return what makes a tensor unlike others, which cannot be copied into it, with an article."""
    kinds = {
        "a nested": tensor.is_nested,
        "a meta": tensor.is_meta,
        "a sparse": tensor.layout is not torch.strided,
        "a quantized": tensor.is_quantized,
        "a complex": tensor.is_complex(),
    }
    return next((kind for kind, is_one in kinds.items() if is_one), "an ordinary")


def _tensors(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        return {}
    return {name: value for name, value in content.items() if isinstance(value, Tensor)}


def _find_state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """The tensors by name, also where they are inside a training checkpoint."""
    for _ in STATE_DICT_KEYS:  # no checkpoint is nested deeper, but a broken one can hold itself
        inside = (content.get(key) for key in STATE_DICT_KEYS) if isinstance(content, Mapping) else ()
        content = next((inner for inner in inside if isinstance(inner, Mapping)), content)
    tensors = _tensors(content)
    if not tensors:
        raise MnemoscopeError(f"{path} holds no weights: it must hold tensors by name, as a state_dict does")
    return tensors


def _without_prefix(tensors: dict[str, Tensor], expected: set[str]) -> dict[str, Tensor]:
    """The tensors without the prefix that a wrapper put before every name, if more of the names then match."""
    for prefix in PREFIXES:
        bare = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        if len(expected & set(bare)) > len(expected & set(tensors)):
            return bare
    return tensors
