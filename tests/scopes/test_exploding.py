"""Models whose states or gradients overflow: plain refusals, true sentences, and nothing printed by LAPACK."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from mnemoscope import LSTM, RNN, LinearSystem, MnemoscopeError, Recurrence, examine
from mnemoscope.scopes import (
    SCOPES,
    horizon,
    landscape,
    lyapunov,
    separation,
    signal,
    smoothness,
    stability,
    truncation,
)
from mnemoscope.scopes._measures.state_vectors import spectral_norms
from mnemoscope.systems import DelayLine
from mnemoscope.theory.separation import separable_distance


def relu(gain):
    torch.manual_seed(0)
    model = RNN(3, 16, nonlinearity="relu")
    with torch.no_grad():
        model.weight_hh_l0.mul_(gain)
    return model


def linear(gain):
    model = LinearSystem(3, 4)
    with torch.no_grad():
        model.weight_hh_l0.copy_(gain * torch.eye(4))
    return model


def saturated():
    torch.manual_seed(0)
    model = LSTM(3, 16)
    with torch.no_grad():
        model.weight_hh_l0.mul_(40)
    return model


def mean_square(y, targets):
    return (y[..., :1] - targets).square().mean()


@pytest.mark.parametrize("scale", [1.0, 1e20])
@pytest.mark.parametrize("make", [lambda: relu(20), lambda: linear(30), saturated], ids=["relu", "linear", "LSTM"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_no_scope_says_nan_or_blames_itself(make, scale, capfd):
    x = scale * torch.randn(40, 4, 3, generator=torch.Generator().manual_seed(0))
    few = {"landscape": {"points": 5}, "attractors": {"steps": 50}}
    quietly = {"progress": lambda *_: None}  # without, a slow machine gets a line on standard error
    found = examine(make(), x, torch.zeros(40, 4, 1), mean_square, options=few, **quietly)
    for finding in found:
        words = finding.sentence.lower().replace("nan or infinite", "").replace("cost of these parameters is nan", "")
        assert " nan" not in words, finding
        assert "please report" not in words, finding
        assert "linalg" not in words, finding
    assert " nan" not in found.verdict.lower().replace("nan or infinite", "")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("scope", [truncation, signal, stability, smoothness, lyapunov])
def test_states_that_overflow_are_refused_in_one_line(scope):
    with pytest.raises(
        MnemoscopeError, match=r"(NaN or infinite from step \d+ on|steps? the state is NaN or infinite)"
    ):
        scope(linear(30), torch.randn(50, 2, 3))


class Tripled(Recurrence):
    """h -> 3 h, unit by unit: no product of matrices turns an infinite state into NaN."""

    input_size = hidden_size = 2

    def initial_state(self, batch):
        return torch.zeros(1, batch, 2)

    def step(self, x, state):
        state = 3 * state + x
        return state[0], state


def test_an_infinite_state_is_not_called_chaotic():
    """Its directions stay finite, and how fast it grew was infinity less infinity."""
    with pytest.raises(MnemoscopeError, match=r"after \d+ steps the state is NaN or infinite"):
        lyapunov(Tripled(), torch.randn(200, 3, 2))
    assert lyapunov(Tripled(), torch.randn(50, 3, 2)).labels["regime"] == "diverging"


def test_horizon_of_outputs_that_overflow():
    """Where gradients explode, that is why outputs do; where they do not, nothing is known."""
    assert "Gradients explode" in horizon(linear(30), torch.randn(50, 2, 3)).sentence
    with pytest.raises(MnemoscopeError, match=r"is NaN or infinite|are NaN or infinite"):
        horizon(lambda x: x.cumsum(0) / 0, torch.randn(50, 2, 3), batch_first=False)


def test_cost_that_is_nan_is_refused():
    with pytest.raises(MnemoscopeError, match=r"the cost of these parameters is (nan|inf)"):
        landscape(linear(30), torch.randn(50, 2, 3), targets=torch.zeros(50, 2, 1), loss=mean_square)


def test_a_large_but_finite_state_is_not_at_rest():
    """Squares of its states overflow in float32: the run diverges all the same."""
    found = lyapunov(linear(4), 1e15 * torch.randn(30, 2, 3))
    assert found.labels["regime"] == "diverging"
    assert found.figures["largest"] == pytest.approx(math.log(4), rel=1e-3)


def test_pairs_of_large_states_do_not_exceed_a_true_bound():
    found = stability(linear(4), torch.randn(55, 2, 3))
    assert found.status == "estimated"
    assert found.figures["largest_ratio"] == pytest.approx(4, rel=1e-4)
    assert found.status_of("bound") == "certified"


def test_exponents_of_a_map_that_forgets_everything():
    found = lyapunov(DelayLine(3), DelayLine(3).inputs(40))
    assert found.figures["largest"] == -math.inf
    assert found.figures["kaplan_yorke"] == 0
    assert "become equal to the last digit along the run (largest exponent -infinity)" in found.sentence


def test_rank_of_large_outputs():
    """Outputs of 1e30 in float32, whose squares overflow, have the rank of the same outputs times 1e-30."""
    torch.manual_seed(0)
    model = RNN(3, 8, nonlinearity="relu", bias=False)
    x = torch.randn(8, 4, 3)
    found, small = separation(model, 1e30 * x), separation(model, x)
    assert 1 <= found.figures["effective_rank"] <= 64
    assert found.figures["effective_rank"] == pytest.approx(small.figures["effective_rank"], rel=0.1)
    assert found.figures["distance"] == pytest.approx(small.figures["distance"], abs=0.05)
    spectra = np.array([[3e30, 4e30], [0.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(separable_distance(spectra), [0.8, 0.0], rtol=1e-6)


def test_signal_without_variance():
    found = signal(RNN(3, 4, bias=False), torch.zeros(9, 2, 3))
    assert "the variance of its states is zero where it would be compared" in found.sentence


def test_outputs_that_are_zero_have_no_window():
    found = truncation(RNN(3, 4, bias=False), torch.zeros(9, 2, 3))
    assert found.status == "not applicable"
    assert "zero on these inputs" in found.why


def test_norms_of_matrices_that_are_not_finite(capfd):
    matrices = torch.eye(3).double().repeat(3, 1, 1)
    matrices[1, 0, 0] = math.nan
    matrices[2, 0, 0] = math.inf
    assert spectral_norms(matrices).tolist() == [1, math.inf, math.inf]
    assert capfd.readouterr() == ("", "")


NETS = """
import torch
from mnemoscope import LSTM, RNN

def exploding():
    model = RNN(8, 16, nonlinearity="relu")
    with torch.no_grad():
        model.weight_hh_l0.mul_(20)
    return model

def steep():
    model = LSTM(8, 128)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1e18)
    return model
"""


@pytest.mark.parametrize("name", ["exploding", "steep"])
def test_standard_output_is_json_alone(name, tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    command = [
        sys.executable,
        "-m",
        "mnemoscope",
        "examine",
        f"nets.py:{name}",
        "--steps",
        "40",
        "--json",
        "--out",
        "o",
    ]
    scopes = ["--scopes", *(scope for scope in SCOPES if scope not in ("landscape", "attractors"))]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore:mnemoscope"}  # as where no kernels were compiled
    run = subprocess.run(
        [*command, *scopes], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout, parse_constant=lambda word: pytest.fail(word))
    assert "horizon" in next(iter(said["models"].values()))["findings"]
    for word in ("MKL", "RuntimeWarning", "Traceback"):
        assert word not in run.stdout + run.stderr
