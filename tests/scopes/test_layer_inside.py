"""What is measured of a recurrent layer inside a model is said of that layer: the model may keep more around it."""

import pytest
import torch
from torch import nn

from mnemoscope.scopes import SCOPES, examine

OF_STATES = ["stability", "lyapunov", "entropy", "smoothness", "attractors"]


class SlowMean(nn.Module):
    """A layer that forgets, and a mean of its outputs that does not."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(2, 3, batch_first=True)

    def forward(self, x):
        mean, means = 0.0, []
        for h in self.layer(x)[0].unbind(1):
            mean = 0.99 * mean + 0.01 * h
            means.append(mean)
        return torch.stack(means, 1)


@pytest.mark.parametrize("name", OF_STATES)
def test_what_is_said_of_states_is_said_of_the_layer(name):
    model, x = SlowMean(), torch.randn(3, 16, 2)
    inside, alone = (SCOPES[name].measure(part, x) for part in (model, model.layer))
    assert "its recurrent layer" in inside.sentence.lower()
    assert "recurrent layer" not in alone.sentence
    assert inside.labels == alone.labels


def test_the_verdict_of_a_slow_mean_does_not_call_it_contractive():
    found = examine(SlowMean(), torch.randn(3, 40, 2), scopes=["recurrence", "horizon", "lyapunov"])
    assert "Gradients reach back over all 39 steps" in found.verdict
    assert "Contractive in its recurrent layer: the distance of neighboring states" in found.verdict
