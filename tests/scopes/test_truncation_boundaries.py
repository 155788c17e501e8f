"""What truncation says exactly at its limits: the shortest windows, their ranges, and what a task needs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope.scopes import _truncation, truncation
from mnemoscope.scopes._measures import windows


def test_shortest_window_at_equality():
    lengths = np.array([1, 2, 4, 8])
    assert windows.shortest(lengths, np.array([0.5, 0.1, 0.01, 0.001]), 0.01) == 4
    assert windows.shortest(lengths, np.array([0.01, 0.0, 0.0, 0.0]), 0.01) == 1
    assert windows.shortest(lengths, np.array([0.0, 0.0, 0.0, 0.02]), 0.01) == math.inf


def test_shortest_window_is_after_the_last_error_that_is_too_large():
    lengths = np.array([1, 2, 4, 8])
    assert windows.shortest(lengths, np.array([0.5, 0.001, 0.5, 0.001]), 0.01) == 8
    assert windows.shortest(lengths, np.array([0.5, math.nan, 0.001, 0.001]), 0.01) == 4


@pytest.mark.parametrize("shortest", [5, 6, 8])
def test_shortest_window_is_found_by_bisection(shortest):
    lengths = np.array([1, 2, 4, 8])
    errors = np.where(lengths >= shortest, 0.0, 1.0)
    assert windows.shortest(lengths, errors, 0.01, lambda k: float(k < shortest)) == shortest


@pytest.mark.parametrize("window", [1, 3, 4, 8, 16])
@pytest.mark.parametrize("of_part", [1, 2, 5, 8, 13, 16])
def test_the_window_of_a_part_is_found_from_that_of_the_whole(window, of_part):
    asked = []

    def error_of(k):
        asked.append(k)
        return float(k < of_part)

    lengths = np.array([1, 2, 4, 8, 16])
    assert windows.shortest_near(window, lengths, 0.01, error_of) == of_part
    assert 0 not in asked
    assert window != of_part or len(asked) <= 2
    assert windows.shortest_near(window, lengths, 0.01, lambda _: math.nan) == math.inf


def test_a_range_holds_its_figure():
    assert windows.widened(np.arange(101.0), 50).tolist() == [5, 95]
    assert windows.widened(np.arange(101.0), 2).tolist() == [2, 95]
    assert windows.widened(np.arange(101.0), 99).tolist() == [5, 99]


@pytest.mark.parametrize(
    ("figures", "needs", "sentence"),
    [
        ({"window": 20.0}, None, "No window shorter than the 20 steps looked at gives its last output to 1 %."),
        (
            {"window": 20.0, "bptt_window": 20.0, "bptt_window_measured": 20.0},
            None,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; no chunks shorter than the 20 "
            "steps give the gradient to 1 %.",
        ),
        (
            {"window": 20.0, "bptt_window": 20.0, "bptt_window_measured": 20.0, "bptt_window_coarse": 12.0},
            None,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; no chunks shorter than the 20 "
            "steps give the gradient to 1 %; those of 12 give it to 10 %.",
        ),
        (
            {"window": 20.0, "bptt_window": 14.0, "bptt_window_measured": 14.0, "bptt_window_coarse": 3.0},
            None,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; backpropagation in chunks of "
            "14 steps gives the gradient to 1 %; those of 3 give it to 10 %.",
        ),
        (
            {"window": 10.0},
            None,
            "The last 10 inputs give its last output to 1 %: a feed-forward network over so many inputs could replace "
            "it.",
        ),
        ({"window": 11.0}, None, "The last 11 inputs give its last output to 1 %."),
        (
            {"window": 1.0, "output_variation": 0.01},
            None,
            "Its last output hardly depends on the inputs: from sequence to sequence it varies by 0.01 of its size, so "
            "no window can be found.",
        ),
        (
            {"window": 3.0, "output_variation": 0.02},
            None,
            "Its last output hardly depends on the inputs: from sequence to sequence it varies by 0.02 of its size, so "
            "no window can be found.",
        ),
        (
            {"window": 3.0, "output_variation": 0.021},
            None,
            "The last 3 inputs give its last output to 1 %: a feed-forward network over so many inputs could replace "
            "it.",
        ),
        (
            {"window": 20.0, "certified_window": 24.0},
            None,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; 24 are proved to be enough.",
        ),
        (
            {"window": 20.0, "bptt_window": 19.0, "bptt_window_measured": 19.0, "certified_window": math.inf},
            18,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; backpropagation in chunks of "
            "19 steps gives the gradient to 1 %.",
        ),
        (
            {"window": 19.0, "bptt_window": 16.0, "bptt_window_measured": 4.0, "certified_window": 40.0},
            15,
            "The last 19 inputs give its last output to 1 % (proved for 40); chunks of 4 steps give the gradient to "
            "1 %, but the task needs 15 steps back: backpropagate through at least 16.",
        ),
    ],
)
def test_truncation_sentence(figures, needs, sentence):
    assert _truncation._sentence({"steps": 20.0, **figures}, {}, {"ends": "last"}, 0.01, needs) == sentence


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (
            (12.0, 9.0, 9.0),
            "The last 12 inputs (3 to 12 over sequences) give its last output to 1 %; backpropagation in "
            "chunks of 9 steps (7 to 15 over 4 groups of sequences) gives the gradient to 1 %.",
        ),
        (
            (20.0, 16.0, 9.0),
            "No window shorter than the 20 steps looked at gives its last output to 1 % (3 to 12 over sequences); "
            "chunks of 9 steps (7 to 15 over 4 groups of sequences) give the gradient to 1 %, but the task needs 15 "
            "steps back: backpropagate through at least 16.",
        ),
    ],
)
def test_truncation_sentence_says_its_spread(figures, sentence):
    named = dict(zip(("window", "bptt_window", "bptt_window_measured"), figures, strict=True)) | {"steps": 20.0}
    spread = {"window": np.array([3, 12]), "bptt_window_measured": np.array([7, 15]), "bptt_window": np.array([7, 15])}
    labels = {"ends": "last", "over": "4 groups of sequences"}
    assert _truncation._sentence(named, spread, labels, 0.01, 15 if figures[1] == 16 else None) == sentence


def test_first_and_last_output_are_two():
    figures = {"steps": 20.0, "window": 6.0, "output_variation": 0.01}
    said = _truncation._sentence(figures, {}, {"ends": "first and last"}, 0.01, None)
    assert said.startswith(
        "Its first and last outputs hardly depend on the inputs: from sequence to sequence they vary by 0.01 of their "
        "size, so no window can be found"
    )


def test_truncation_sentence_of_a_model_that_reads_both_directions():
    said = _truncation._sentence({"steps": 20.0, "window": 6.0}, {}, {"ends": "first and last"}, 0.01, None)
    assert said == (
        "Its first and last outputs are given to 1 % by the 6 inputs nearest to each; those between, which read both "
        "directions, were not looked at."
    )


@pytest.mark.parametrize(("needs", "count"), [(None, 0), (7, 0), (8, 1), (500, 1)])
def test_truncation_warning_at_equality_with_the_need(needs, count):
    assert len(_truncation._warnings(SimpleNamespace(needs=needs), {"window": 8.0, "steps": 20.0})) == count


class Strided(nn.Module):
    """y_j = sum_i 0.5^i z_{j - i} of the means z of each `stride` inputs: later ones of a window are left out."""

    def __init__(self, stride):
        super().__init__()
        self.stride = stride

    def forward(self, x):
        z = x[:, : x.shape[1] // self.stride * self.stride].unflatten(1, (-1, self.stride)).mean(2)
        y = [z[:, 0]]
        for z_j in z.unbind(1)[1:]:
            y.append(0.5 * y[-1] + z_j)
        return torch.stack(y, 1)


@pytest.mark.parametrize(("stride", "steps"), [(2, 80), (2, 81), (3, 80), (4, 80)])
def test_windows_of_a_strided_model_begin_where_an_output_does(stride, steps):
    """A window of an odd length put other inputs together: 58 of 80 steps were said to be needed."""
    found = truncation(Strided(stride), torch.randn(3, steps, 2))
    assert found.figures["window"] <= 10 * stride + steps % stride  # 0.5^8 < 1 %
    assert (steps - found.figures["window"]) % stride == 0


@pytest.mark.parametrize(("stride", "steps", "window"), [(7, 50, 8), (7, 61, 5), (2, 6, 4), (16, 100, 4)])
def test_windows_of_few_outputs_begin_where_an_output_does(stride, steps, window):
    """At a stride of 7, 50 steps give 7 outputs and 25 give 4: their difference would be a stride of 8."""
    found = truncation(lambda x: x.unfold(1, 4, stride).mean(-1), torch.randn(3, steps, 2))
    assert found.figures["window"] == window


def test_windows_of_a_wide_convolution_are_exact():
    found = truncation(lambda x: x.unfold(1, 31, 1).mean(-1), torch.randn(3, 60, 2))
    assert found.figures["window"] == 31


def test_windows_of_some_lengths_are_enough_within_blocks():
    """No window shorter than 64 steps was said to give the output, where the last 8 do."""
    x = torch.randn(3, 64, 2)
    found = truncation(lambda x: torch.cat([part.cumsum(1) for part in x.split(8, 1)], 1), x, windows=64)
    assert found.figures["window_of_some_lengths"] == 8
    assert found.sentence.startswith("The last 8 inputs give its last output to 1 %, as do windows of some other")


@pytest.mark.parametrize("size", [1e160, 1e300])
def test_inputs_whose_squares_overflow_do_not_end_the_measurement(size):
    torch.manual_seed(0)
    layer = mnemoscope.LinearSystem(2, 3, bias=False).double()
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.5 * torch.eye(3))
    x = torch.randn(30, 4, 2, dtype=torch.float64)
    found, small = truncation(layer, size * x), truncation(layer, x)
    assert found.status == "estimated"
    assert found.figures["window"] == small.figures["window"]
