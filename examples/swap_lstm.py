"""The same training script with nn.LSTM and with RelLSTM: name the first symbol of a sequence at its end.

python examples/swap_lstm.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import mnemoscope

SYMBOLS, STEPS, UPDATES = 4, 60, 400


def train(layer: nn.Module, updates: int = UPDATES) -> float:
    """Return the accuracy at the last update. The code is the same for any `layer`."""
    torch.manual_seed(0)
    read_out = nn.Linear(64, SYMBOLS)
    optimizer = torch.optim.Adam([*layer.parameters(), *read_out.parameters()], lr=5e-3)
    for _ in range(updates):
        symbols = torch.randint(SYMBOLS, (STEPS, 64))
        output, (_, _) = layer(F.one_hot(symbols, SYMBOLS).float())
        scores = read_out(output[-1])
        optimizer.zero_grad()
        F.cross_entropy(scores, symbols[0]).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
    return (scores.argmax(-1) == symbols[0]).float().mean().item()


def main(updates: int = UPDATES) -> None:
    for layer_type in (nn.LSTM, mnemoscope.RelLSTM):
        torch.manual_seed(0)
        accuracy = 100 * train(layer_type(SYMBOLS, 64), updates)
        print(f"{layer_type.__name__:8} names the first of {STEPS} symbols in {accuracy:.0f} % of cases")


if __name__ == "__main__":
    main()
