import numpy as np
import pytest
import torch

from mnemoscope import LSTM, SAB, MemLSTM, MemRNN, MnemoscopeError, RelLSTM, RelRNN, trace
from mnemoscope.scopes import attention

LAYERS = [
    MemRNN(3, 5),
    MemLSTM(3, 5),
    RelRNN(3, 5, buffer=3, relevant=4),
    RelLSTM(3, 5, buffer=4, relevant=2),
    SAB(3, 5),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_attention_map_equals_the_trace(layer):
    x = torch.randn(14, 3, 3)
    wanted = trace(layer, x).attention_by_origin().double()  # (B, T, steps)
    found = attention(layer, x, sequence=1)
    width = wanted.shape[-1]
    np.testing.assert_allclose(found.series["attention"][:, :width], wanted.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.series["attention_of_sequence"][:, :width], wanted[1], atol=1e-6)
    np.testing.assert_allclose(found.series["received"][:width], wanted.sum(1).mean(0), atol=1e-6)
    assert not np.triu(found.series["attention"], 1).any()


def memories(layer, x):
    """Each step's memory: a set of origins a sequence, read off the states themselves."""
    return [[set(row.tolist()) - {-1} for row in state.memory.origin[0]] for state in trace(layer, x).states[1:]]


def test_kept_for_and_kept_at_end():
    layer, x = RelRNN(3, 5, buffer=3, relevant=2), torch.randn(20, 4, 3)
    found, held = attention(layer, x, sequence=2), memories(layer, x)
    wanted = [np.mean([sum(i in step[row] for step in held) for row in range(4)]) for i in range(20)]
    np.testing.assert_allclose(found.series["kept_for"], wanted)
    beyond = [np.mean([sum(i in held[t][row] for t in range(i + 3, 20)) for row in range(4)]) for i in range(20)]
    np.testing.assert_allclose(found.series["kept_beyond_buffer"], beyond)
    assert set(found.series["kept_at_end"].tolist()) == held[-1][2]


def test_relevance_is_the_last_score_in_memory():
    layer, x = RelRNN(3, 5, buffer=3, relevant=2), torch.randn(12, 2, 3)
    wanted = {}
    for state in trace(layer, x).states[1:]:
        memory = state.memory
        wanted |= dict(zip(memory.origin[0, 0].tolist(), memory.relevance[0, 0].tolist(), strict=True))
    found = attention(layer, x).series["relevance"]
    np.testing.assert_allclose(found, [wanted[i] for i in range(12)], atol=1e-6)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_relevance_needed_decides_who_is_kept(decay):
    """What leaves a full buffer stays exactly if its relevance exceeds what was needed at that step."""
    buffer, steps = 3, 40
    layer = RelRNN(3, 5, buffer=buffer, relevant=2, decay=decay).double()
    layer.weight_score_l0.data *= 5
    x = torch.randn(steps, 2, 3, dtype=torch.float64)
    needed, run = attention(layer, x, sequence=1).series["relevance_needed"], trace(layer, x)
    outcomes = set()
    for t in range(buffer, steps):
        leaving, before, after = t - buffer, run.states[t].memory, run.states[t + 1].memory
        slot = before.origin[0, 1, :buffer].tolist().index(leaving)
        kept = leaving in after.origin[0, 1].tolist()
        assert kept == (np.isnan(needed[t]) or float(before.relevance[0, 1, slot]) > needed[t])
        outcomes.add(kept)
    assert outcomes == {True, False}


def test_figures_of_uniform_attention():
    layer = MemRNN(3, 5)
    layer.weight_score_l0.data.zero_()
    found = attention(layer, torch.randn(16, 2, 3), needs=8)
    t = np.arange(16)
    np.testing.assert_allclose(found.series["states_attended"], t + 1, rtol=1e-5)
    np.testing.assert_allclose(found.series["lag"], t / 2, atol=1e-5)
    assert found.figures["mean_lag"] == pytest.approx(3.75)
    assert found.figures["longest_lag"] == 15
    assert found.figures["needed"] == pytest.approx(np.mean([(s - 7) / (s + 1) for s in range(8, 16)]))
    assert not found.warnings


def test_beyond_buffer():
    layer = RelRNN(3, 5, buffer=2, relevant=6)
    layer.weight_score_l0.data.zero_()
    found = attention(layer, torch.randn(8, 2, 3))
    assert found.figures["beyond_buffer"] == pytest.approx(np.mean([max(t - 1, 0) / (t + 1) for t in range(8)]))


def test_warning_if_attention_does_not_reach_the_need():
    found = attention(RelRNN(3, 5, buffer=3, relevant=0), torch.randn(20, 2, 3), needs=10)
    assert found.figures["needed"] == 0
    assert "as far back as the task needs" in found.warnings[0]


def test_layers_of_a_stack():
    layer, x = RelLSTM(3, 5, 2, buffer=2, relevant=2), torch.randn(10, 2, 3)
    wanted = trace(layer, x).attention_by_origin(1).double().mean(0)
    np.testing.assert_allclose(attention(layer, x, layer=1).series["attention"], wanted, atol=1e-6)
    with pytest.raises(MnemoscopeError, match="layers 0 to 1 and sequences 0 to 1; got 2 and 0"):
        attention(layer, x, layer=2)


def test_not_applicable_without_attention():
    found = attention(LSTM(3, 5), torch.randn(10, 2, 3))
    assert found.status == "not applicable"
    assert "does not attend" in found.why
