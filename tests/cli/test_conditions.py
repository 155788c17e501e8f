"""What the names in the conditions of --fail-if mean."""

import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope import MnemoscopeError
from mnemoscope.cli._conditions import read_conditions


def test_a_figure_that_several_scopes_have_is_refused_without_its_scope():
    """A GRU has no stability.bound: "bound" would mean that of its entropy, and of an LSTM that of its stability."""
    owners = {}
    for layer in (mnemoscope.RelRNN(2, 3), mnemoscope.RNN(2, 3)):
        for finding in mnemoscope.examine(layer, torch.randn(8, 2, 2), torch.zeros(8, 2, 3), nn.MSELoss()):
            for figure in finding.figures:
                owners.setdefault(figure, set()).add(finding.scope)
    for figure, scopes in owners.items():
        if len(scopes) == 1 or figure in mnemoscope.scopes.SCOPES:
            read_conditions([f"{figure}<0"])
            continue
        with pytest.raises(MnemoscopeError, match=f"several scopes have a figure '{figure}'") as refused:
            read_conditions([f"{figure}<0"])
        assert all(f"{scope}.{figure}" in str(refused.value) for scope in scopes)
    assert {"bound", "standard_error", "growth"} <= {figure for figure, scopes in owners.items() if len(scopes) > 1}
