"""Constructors: nn.LSTM's arguments first, own options by keyword, and an error that names a mistyped one."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
from table import ROWS
from torch import nn

import mnemoscope
from mnemoscope import layers

TORCHS = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size"]
every_layer = pytest.mark.parametrize("layer", layers.LAYERS.values(), ids=lambda layer: layer.__name__)


@every_layer
def test_signature_is_nn_lstms_and_own_options_by_keyword(layer: type[layers.Layer]) -> None:
    parameters = list(inspect.signature(layer).parameters.values())
    assert [p.name for p in parameters[:8]] == TORCHS
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters[:8])
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[8:])
    assert [p.name for p in parameters[-3:]] == ["checkpoint", "device", "dtype"]
    assert not any(isinstance(p.annotation, str) for p in parameters)  # help() shows the allowed values
    made = layer(3, 4, 2, False, True, 0.5, True)  # by position, as scripts for nn.LSTM call it
    torchs = nn.LSTM(3, 4, 2, False, True, 0.5, True)
    for name in TORCHS[:-1]:
        assert getattr(made, name) == getattr(torchs, name)


@every_layer
def test_every_option_has_a_type_a_default_and_a_sentence_of_help(layer: type[layers.Layer]) -> None:
    own = layers.options(layer)
    assert "checkpoint" in own
    assert not {"device", "dtype", *TORCHS} & set(own)
    for option in own.values():
        assert not isinstance(option.annotation, str)
        assert option.annotation is not Any
        assert option.default is not inspect.Parameter.empty
        assert option.help.endswith(".")
    documented = inspect.getdoc(layer) or ""
    assert all(f"{name}: " in documented for name in own if name != "checkpoint")


@every_layer
def test_defaults_are_allowed_values(layer: type[layers.Layer]) -> None:
    for option in layers.options(layer).values():
        if option.annotation is bool or option.annotation is int:
            assert type(option.default) is option.annotation
        if getattr(option.annotation, "__origin__", None) is Literal:
            assert option.default in get_args(option.annotation)


def test_options_are_read_with_types_and_help() -> None:
    own = layers.options(mnemoscope.RelLSTM)
    assert list(own) == ["buffer", "relevant", "decay", "refresh", "mix", "output", "checkpoint"]
    assert own["buffer"] == layers.Option("buffer", int, 10, "nu, how many of the last states are attended.")
    assert own["mix"].annotation == Literal["sum", "mean"]
    assert own["checkpoint"].help.startswith("keep activations")


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    message = r"^RelLSTM\(\) got an unexpected keyword argument 'bufer'; did you mean buffer\?$"
    with pytest.raises(TypeError, match=message):
        mnemoscope.RelLSTM(3, 4, bufer=2)
    with pytest.raises(TypeError, match=r"^GRU\(\) .*'hiden_size'; did you mean hidden_size\?$"):
        mnemoscope.GRU(3, hiden_size=4)
    with pytest.raises(TypeError, match=r"^SAB\(\) .*'mix'; it takes input_size, .*truncation"):
        mnemoscope.SAB(3, 4, mix="mean")  # no option's name is near


def test_an_unknown_option_of_a_users_subclass_is_named() -> None:
    class Leaky(layers.Layer):
        def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
            return {"weight_hh": (self.hidden_size, self.hidden_size)}

    class Own(Leaky):
        def __init__(self, input_size: int, hidden_size: int, *, rate: float = 0.5) -> None:
            self.rate = rate
            super().__init__(input_size, hidden_size)

    with pytest.raises(TypeError, match=r"^Leaky\(\) .*'numlayers'; did you mean num_layers\?$"):
        Leaky(3, 4, numlayers=2)
    with pytest.raises(TypeError, match=r"^Own\(\) .*'rat'; did you mean rate\?$"):
        Own(3, 4, rat=0.1)
    assert list(layers.options(Own)) == ["rate"]


def test_every_layer_is_in_the_table_and_in_the_package() -> None:
    assert set(layers.LAYERS.values()) == {row.layer for row in ROWS}
    for name, layer in layers.LAYERS.items():
        assert getattr(mnemoscope, name) is getattr(layers, name) is layer
        assert name in mnemoscope.__all__


def test_wrong_choices_are_named() -> None:
    message = "RNN: recurrent_init must be 'uniform', 'henaff', 'cayley' or 'orthogonal'; got 'zeros'"
    with pytest.raises(mnemoscope.MnemoscopeError, match=message):
        mnemoscope.RNN(3, 4, recurrent_init="zeros")
    with pytest.raises(mnemoscope.MnemoscopeError, match="SAB: top should be of type int, got: bool"):
        mnemoscope.SAB(3, 4, top=True)


USER_SCRIPT = """
import mnemoscope
layer = mnemoscope.RelLSTM(3, 4, num_layers=2, buffer=2, mix="mean", dropout=0.1)
size: int = layer.buffer + mnemoscope.RAC(3, 4).output_size
mnemoscope.RelLSTM(3, 4, bufer=2)
mnemoscope.RelLSTM(3, 4, mix="product")
mnemoscope.LSTM(3, 4, buffer=2)
mnemoscope.GORU(3, "4")
mnemoscope.RelRN(3, 4)
mnemoscope.scopes.horizonn
mnemoscope.theory.lstm_certificates
found: float = mnemoscope.scopes.stability(layer, None).figures["lambda"] + mnemoscope.tasks.Copy(T=3).needs
"""


@pytest.mark.slow
def test_mypy_sees_the_options(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(USER_SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout.splitlines()
    errors = [line.split("script.py:")[1] for line in said if "error:" in line]
    assert [error.split(":")[0] for error in errors] == ["5", "6", "7", "8", "9", "10", "11"]
    assert 'did you mean "buffer"?' in errors[0]


def test_device_and_dtype_reach_the_parameters() -> None:
    layer = mnemoscope.RelLSTM(3, 4, device="meta", dtype=torch.float64)
    output, (h, _) = layer(torch.randn(5, 2, 3, device="meta", dtype=torch.float64))  # for shapes, as nn.LSTM's
    assert (output.shape, h.shape, h.device.type) == ((5, 2, 4), (1, 2, 4), "meta")
    assert all(p.device.type == "meta" and p.dtype == torch.float64 for p in layer.parameters())
