"""The layer that docs/layers.md writes runs as it says."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.nn.utils.rnn import pack_padded_sequence

import mnemoscope

DOCS = Path(__file__).parents[2] / "docs" / "layers.md"


def test_a_layer_of_your_own() -> None:
    code = next(block for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "class" in block)
    names: dict = {"torch": torch, "mnemoscope": mnemoscope}
    exec(code, names)
    layer = names["Leaky"](10, 6, num_layers=2, bidirectional=True)
    packed = pack_padded_sequence(torch.randn(5, 3, 10), torch.tensor([5, 4, 2]))
    output, h = layer(packed)
    assert output.data.shape == (11, 12)
    assert h.shape == (4, 3, 6)


def test_every_layer_has_a_row() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(mnemoscope.layers.LAYERS)
