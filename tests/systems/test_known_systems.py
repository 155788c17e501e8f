"""The systems obey the contract of a recurrence, and the scopes find what is known of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mnemoscope import MnemoscopeError, systems
from mnemoscope.recurrence import leaves
from mnemoscope.scopes import SCOPES
from mnemoscope.systems import SYSTEMS, Known

CASES: list[tuple[str, dict[str, Any]]] = [
    ("chaotic-lstm", {"s": 0.5}),
    ("logistic", {}),
    ("logistic", {"r": 2.5}),
    ("logistic", {"r": 3.2}),
    ("henon", {}),
    ("henon", {"b": 0.0}),
    ("cat-map", {}),
    ("lorenz", {}),
    ("leaky-sum", {}),
    ("leaky-sum", {"present": 10.0}),
    ("delay-line", {}),
    ("random-tanh", {}),
    ("circuit", {}),
]


def name_of(case: tuple[str, dict[str, Any]]) -> str:
    name, options = case
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


@pytest.mark.parametrize("name", SYSTEMS)
def test_pieces_equal_the_whole_sequence(name: str) -> None:
    system = SYSTEMS[name]()
    x = system.inputs(steps=9, batch=2)
    x = x + 0.01 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    whole, last = system(x)
    first, state = system(x[:4])
    second, end = system(x[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(leaves(end), leaves(last), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert whole.dtype == torch.float64


@pytest.mark.parametrize("name", SYSTEMS)
def test_inputs_depend_on_the_seed_alone(name: str) -> None:
    system = SYSTEMS[name]()
    torch.testing.assert_close(system.inputs(seed=3), SYSTEMS[name]().inputs(seed=3), rtol=0, atol=0)


def test_the_logistic_map_is_its_formula() -> None:
    _, x = systems.LogisticMap(3.0)(torch.zeros(2, 1, 1, dtype=torch.float64))
    first = 3 * 0.3 * 0.7
    assert x.item() == pytest.approx(3 * first * (1 - first))


def test_the_henon_map_is_its_formula() -> None:
    _, state = systems.HenonMap()(torch.zeros(1, 1, 1, dtype=torch.float64))
    assert state.flatten().tolist() == pytest.approx([1 - 1.4 * 0.01 + 0.1, 0.03])


def test_the_lorenz_step_is_of_fourth_order() -> None:
    def after(steps: int) -> torch.Tensor:
        flow = systems.Lorenz(dt=0.2 / steps)
        return flow(torch.zeros(steps, 1, 1, dtype=torch.float64))[1]

    exact = after(3200)
    ratio = (after(20) - exact).norm() / (after(40) - exact).norm()
    assert float(ratio) == pytest.approx(16, rel=0.1)


def test_the_delay_line_repeats_its_input() -> None:
    line = systems.DelayLine(3)
    x = line.inputs(steps=10, batch=2)
    y, _ = line(x)
    torch.testing.assert_close(y[3:], x[:-3])
    assert not y[:3].any()


def test_the_random_tanh_network_has_its_gain() -> None:
    V = systems.RandomTanhNetwork(200, gain=1.5).weight_hh_l0
    assert float(V.std()) == pytest.approx(1.5 / math.sqrt(200), rel=0.03)


def test_a_known_figure_is_compared_with_its_tolerance() -> None:
    known = Known("lyapunov", "largest", 1.0, 0.1, "")
    assert known.holds(1.1 - 1e-12)
    assert not known.holds(1.11)
    assert not known.holds(math.nan)
    assert known.holds(1.05, standard_error=0.02)
    assert not known.holds(1.05, standard_error=0.01)
    assert not known.holds(1.2, standard_error=1.0)
    assert Known("lyapunov", "largest", -math.inf, 0.0, "").holds(-math.inf, math.nan)


@pytest.mark.parametrize(
    "bad", [lambda: systems.LogisticMap(4.1), lambda: systems.DelayLine(0), lambda: systems.LeakySum(1.0)]
)
def test_a_bad_parameter_is_refused_in_one_line(bad: Any) -> None:
    with pytest.raises(MnemoscopeError, match="got"):
        bad()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_scopes_measure_what_is_known(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    system = SYSTEMS[name](**options)
    known = system.known()
    assert known
    found = {}
    for answer in known:
        key = (answer.scope, tuple(answer.options.items()))
        if key not in found:
            found[key] = SCOPES[answer.scope].measure(system, system.inputs(), **answer.options)
        figures = found[key].figures
        stated = figures["standard_error"] if answer.figure in ("largest", "change") else math.nan
        assert answer.holds(figures[answer.figure], stated), f"{answer}; measured {figures}"
