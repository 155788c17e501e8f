"""Every scope runs on the networks that training makes: an embedding, a layer, a read-out."""

from __future__ import annotations

import pytest
import torch

from mnemoscope.scopes import SCOPES
from mnemoscope.tasks import Copy
from mnemoscope.training import NetworkConfig, SequenceModel

QUICK = {"attractors": dict(steps=10, recorded=8), "landscape": dict(points=3), "paths": dict(sequences=1)}


@pytest.mark.parametrize("name", ["LSTM", "RelRNN", "torch.GRU"])
def test_all_scopes_on_every_layer(name: str) -> None:
    torch.manual_seed(0)
    task = Copy(T=8)
    batch = task.batch(0, 4)
    network = SequenceModel.for_task(task, NetworkConfig(name, 6))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    for scope in SCOPES.values():
        found = scope.measure(network, batch.inputs, targets=batch.targets, loss=task.loss, **QUICK.get(scope.name, {}))
        assert found.status in ("certified", "estimated", "not applicable"), found
    assert all(type(p) is torch.nn.Parameter for p in network.parameters())
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
