"""The cost over lines and planes of parameters is the cost at each of their points."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope.scopes._landscape import filter_normalized, landscape
from mnemoscope.systems import ChaoticLSTM
from mnemoscope.theory.smoothness import chaotic_lstm
from mnemoscope.training import NetworkConfig, SequenceModel


def mean_square(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (y - target).square().mean()


def setting(T: int = 12, n: int = 4) -> dict:
    draw = torch.Generator().manual_seed(0)
    x, target = (torch.randn(T, 3, k, generator=draw, dtype=torch.float64) for k in (2, n))
    return {"inputs": x, "targets": target, "loss": mean_square}


@pytest.mark.parametrize(
    "make",
    [
        lambda: mnemoscope.LSTM(2, 4),
        lambda: mnemoscope.RelRNN(2, 4, buffer=3, relevant=2),
        lambda: nn.GRU(2, 4),
        lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)),
    ],
    ids=["LSTM", "RelRNN", "torch-GRU", "feed-forward"],
)
def test_line_equals_the_model_at_each_point(make) -> None:
    torch.manual_seed(0)
    start, end, given = make().double(), make().double(), setting()
    before = copy.deepcopy(start.state_dict())
    found = landscape(start, **given, to=dict(end.named_parameters()), line=True, points=7)
    for t, cost in zip(found.series["x"], found.series["cost"], strict=True):
        between = copy.deepcopy(start)
        between.load_state_dict({k: (1 - float(t)) * before[k] + float(t) * v for k, v in end.state_dict().items()})
        output = between(given["inputs"])
        output = output[0] if isinstance(output, tuple) else output
        assert cost == pytest.approx(mean_square(output, given["targets"]).item(), rel=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in start.state_dict().items())


@pytest.mark.parametrize("make", [mnemoscope.LSTM, mnemoscope.RelRNN, mnemoscope.GRU])
def test_vmap_equals_the_loop(make, monkeypatch) -> None:
    torch.manual_seed(0)
    model, planes, calls = make(2, 4, dtype=torch.float64), [], []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    # Does the layer with a hook give what its step gives? Two equal runs, one for the loss; 25 points, the middle one,
    # two lines. After vmap the middle is run by itself.
    for few, runs in ((0, 4 + 4 + 1), (10**12, 4 + 25 + 1 + 82)):
        monkeypatch.setattr("mnemoscope.scopes._measures.parameter_batches.FEW", few)
        calls.clear()
        planes.append(landscape(model, **setting(), points=5).series["cost"])
        assert len(calls) == runs
    np.testing.assert_allclose(*planes, rtol=1e-9)


def test_plane_through_three_points() -> None:
    torch.manual_seed(0)
    start, end, third = (mnemoscope.RNN(2, 4, dtype=torch.float64) for _ in range(3))
    given = setting()
    found = landscape(start, **given, to=dict(end.named_parameters()), third=dict(third.named_parameters()), points=7)
    x, y = (found.series[name].tolist() for name in "xy")
    corners = {(0.0, 0.0): start, (1.0, 0.0): end, (0.0, 1.0): third}
    for (a, b), model in corners.items():
        cost = found.series["cost"][y.index(b), x.index(a)]
        assert cost == pytest.approx(mean_square(model(given["inputs"])[0], given["targets"]).item(), rel=1e-6)


def test_linear_readout_gives_a_parabola() -> None:
    found = landscape(nn.Linear(2, 4).double(), **setting(), points=21)
    rows = found.series["cost"]
    np.testing.assert_allclose(np.diff(rows, 3, axis=1), 0, atol=1e-10)
    assert found.figures["roughness"] < 1.5
    assert "smooth" in found.sentence


def test_chaotic_network_is_rough() -> None:
    """Ribeiro et al. 2019, section 3.1: around s = 1 the cost of the chaotic LSTM over 200 steps is full of bends."""
    weights = chaotic_lstm(1.0)

    class Chaotic(mnemoscope.Recurrence):
        def __init__(self) -> None:
            super().__init__()
            self.input_size, self.hidden_size = 1, 2
            self.weight = nn.Parameter(weights.weight_hh.clone())

        def initial_state(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
            return tuple(t.expand(1, batch, 2) for t in (weights.h, weights.c))

        def step(self, x, state):
            i, f, g, o = (state[0][0] @ self.weight.mT).chunk(4, -1)
            c = torch.sigmoid(f) * state[1][0] + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            return h, (h[None], c[None])

    model, x = Chaotic(), torch.zeros(200, 1, 1, dtype=torch.float64)
    target = model(x)[0].detach()
    found = landscape(model, x, targets=target, loss=mean_square, points=15, span=0.05)
    assert found.figures["cost"] < 1e-20
    assert "rough" in found.sentence
    short = landscape(model, x[:5], targets=target[:5], loss=mean_square, points=15, span=0.05)
    assert "smooth" in short.sentence


@pytest.mark.parametrize("seed", range(8))
def test_roughness_between_the_points_of_the_plane_is_seen(seed: int) -> None:
    """A plane of 13 x 13 points shows the chaotic LSTM's cost as smooth; the lines through its middle do not."""
    system = ChaoticLSTM(s=1.0)
    x = system.inputs(steps=200)
    targets = system(x)[0].detach()
    found = landscape(system, x, targets=targets, loss=mean_square, seed=seed)
    assert "rough" in found.sentence
    assert found.figures["roughness"] > 4


def test_cost_in_the_middle_is_the_models_own_in_float32() -> None:
    system = ChaoticLSTM(s=1.0).float()
    x = torch.zeros(300, 1, 1)
    targets = system(x)[0].detach()
    found = landscape(system, x, targets=targets, loss=mean_square, points=3)
    assert found.figures["cost"] == 0
    assert "rounding errors in float32" in found.warnings[0]
    assert not landscape(system, x[:20], targets=targets[:20], loss=mean_square, points=3).warnings


def test_landscape_without_parameters_is_not_applicable() -> None:
    found = landscape(nn.Tanh(), torch.randn(2, 5, 3), targets=torch.zeros(2, 5, 3), loss=mean_square)
    assert found.status == "not applicable"


def test_held_out_sequences() -> None:
    model, given = mnemoscope.GRU(2, 4, dtype=torch.float64), setting()
    other = (given["inputs"] + 1, given["targets"])
    found = landscape(model, **given, points=3, held_out=other)
    alone = landscape(model, other[0], targets=other[1], loss=mean_square, points=3)
    np.testing.assert_allclose(found.series["held_out"], alone.series["cost"])
    assert found.figures["held_out"] == pytest.approx(alone.figures["cost"])


def test_fallback_without_vmap() -> None:
    class Stubborn(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1.0 if self.weight.sum().item() > 0 else -1.0)

    model, given = Stubborn(2, 4).double(), setting()
    found = landscape(model, **given, points=5)
    assert found.series["cost"].shape == (5, 5)
    assert found.series["cost"][2, 2] == pytest.approx(mean_square(model(given["inputs"]), given["targets"]).item())


def test_filter_normalized_directions() -> None:
    weight = torch.randn(5, 7, dtype=torch.float64) * torch.arange(1.0, 6.0)[:, None]
    direction = filter_normalized(weight, torch.Generator().manual_seed(0))
    torch.testing.assert_close(direction.norm(dim=1), weight.norm(dim=1))
    assert filter_normalized(torch.zeros(3), torch.Generator()).norm() == 0


def test_refuses_bad_points() -> None:
    model, given = mnemoscope.GRU(2, 4, dtype=torch.float64), setting()
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"to must have weight_ih_l0 \[12, 2\]; got nothing"):
        landscape(model, **given, to={})
    with pytest.raises(mnemoscope.MnemoscopeError, match="third needs to="):
        landscape(model, **given, third=dict(model.named_parameters()))
    with pytest.raises(mnemoscope.MnemoscopeError, match="points must be a whole number of at least 3; got 2"):
        landscape(model, **given, points=2)
    assert landscape(model, given["inputs"]).status == "not applicable"


class Tagger(nn.Module):
    """An embedding, torch's LSTM and a read-out that may share the embedding's weights, as people write it."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.rnn = nn.LSTM(4, 4)
        self.head = nn.Linear(4, 7)
        self.register_buffer("unused", torch.zeros(2))
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.table(ids))[0])


class StepTagger(Tagger):
    """The same, one step at a time."""

    def initial_state(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        zeros = self.head.weight.new_zeros(1, batch, 4)
        return zeros, zeros

    def step(self, ids: torch.Tensor, state) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        h, state = self.rnn(self.table(ids)[None], state)
        return self.head(h[0]), state


def sequence_model(model: str = "LSTM", **options) -> SequenceModel:
    """The network that `mnemoscope train` trains, on 7 different ids."""
    config = NetworkConfig(model=model, hidden_size=4, **options)
    return SequenceModel(7, 7, config, token_input=bool(config.embedding))


def token_loss(y: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(y.flatten(0, 1), ids.flatten())


def cost_of(model: nn.Module, ids: torch.Tensor) -> float:
    y = model.eval()(ids)
    return token_loss(y[0] if isinstance(y, tuple) else y, ids).item()


TOKEN_MODELS = {
    "SequenceModel": lambda: sequence_model(embedding=4),
    "tied": lambda: sequence_model(embedding=4, tied=True),
    "torch layer": lambda: sequence_model("torch.LSTM", embedding=4, tied=True),
    "RelRNN": lambda: sequence_model("RelRNN", embedding=4, dropout=0.5),
    "user's": Tagger,
    "user's, tied": lambda: Tagger(tied=True),
    "user's step": StepTagger,
    "compiled": lambda: torch.compile(Tagger()),
}


@pytest.mark.parametrize("kind", TOKEN_MODELS)
def test_ends_have_the_costs_of_the_two_models(kind: str) -> None:
    """`to` is the other model's state_dict as it comes; ids are looked up in the embedding of each point."""
    torch.manual_seed(0)
    start, end = (TOKEN_MODELS[kind]().double() for _ in range(2))
    ids = torch.randint(7, (9, 3))
    found = landscape(start, ids, targets=ids, loss=token_loss, to=end.state_dict(), line=True, points=7)
    by_x = dict(zip(found.series["x"].tolist(), found.series["cost"].tolist(), strict=True))
    inner = [getattr(model, "_orig_mod", model) for model in (start, end)]
    assert by_x[0.0] == pytest.approx(cost_of(inner[0], ids), rel=1e-14)
    assert by_x[1.0] == pytest.approx(cost_of(inner[1], ids), rel=1e-14)
    assert found.figures["cost_to"] == by_x[1.0]
    between = copy.deepcopy(inner[0])
    before, after = (model.state_dict() for model in inner)
    between.load_state_dict({name: 0.5 * before[name] + 0.5 * after[name] for name in before})
    assert by_x[0.5] == pytest.approx(cost_of(between, ids), rel=1e-9)


def test_state_dict_of_a_network_without_an_embedding() -> None:
    torch.manual_seed(0)
    start, end = (sequence_model().double() for _ in range(2))
    x = nn.functional.one_hot(torch.randint(7, (9, 3)), 7).double()
    found = landscape(start, x, targets=x, loss=mean_square, to=end.state_dict(), line=True, points=7)
    assert found.figures["cost_to"] == pytest.approx(mean_square(end(x)[0], x).item(), rel=1e-14)


def test_held_out_ids_are_looked_up_too() -> None:
    torch.manual_seed(0)
    start, end = (sequence_model(embedding=4, tied=True).double() for _ in range(2))
    ids, others = torch.randint(7, (2, 9, 3))
    options = dict(loss=token_loss, to=end.state_dict(), line=True, points=7)
    found = landscape(start, ids, targets=ids, **options, held_out=(others, others))
    alone = landscape(start, others, targets=others, **options)
    np.testing.assert_allclose(found.series["held_out"], alone.series["cost"], rtol=1e-12)


def test_tied_weights_must_stay_one_parameter() -> None:
    torch.manual_seed(0)
    ids = torch.randint(7, (9, 3))
    given = {"targets": ids, "loss": token_loss}
    other = sequence_model(embedding=4).state_dict()
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"readout\.weight other values than embedding\.weight"):
        landscape(sequence_model(embedding=4, tied=True), ids, **given, to=other)
    with pytest.raises(mnemoscope.MnemoscopeError, match="to gives nothing, which the model lacks"):
        landscape(sequence_model(embedding=4), ids, **given, to={**other, "nothing": torch.zeros(1)})


def test_ranges_and_titles_of_the_axes() -> None:
    """theta = s_1 theta_a + s_2 theta_b (Ribeiro et al. 2019, fig. 7): from zero, to a and to b."""
    torch.manual_seed(0)
    zero, a, b = (mnemoscope.RNN(2, 4, dtype=torch.float64) for _ in range(3))
    with torch.no_grad():
        for parameter in zero.parameters():
            parameter.zero_()
    given = setting()
    ends = dict(to=a.state_dict(), third=b.state_dict(), x_range=(0, 2), y_range=(-0.5, 0.5))
    found = landscape(zero, **given, **ends, points=5, x_label="s1")
    x, y = found.series["x"], found.series["y"]
    np.testing.assert_allclose(x, [0, 0.5, 1, 1.5, 2])
    np.testing.assert_allclose(y, [-0.5, -0.25, 0, 0.25, 0.5])
    weights = zip(a.state_dict().items(), b.state_dict().values(), strict=True)
    zero.load_state_dict({name: 1.5 * one - 0.25 * other for (name, one), other in weights})
    assert found.series["cost"][1, 3] == pytest.approx(mean_square(zero(given["inputs"])[0], given["targets"]).item())
    assert found.labels == {"x": "s1", "y": "way to the third parameters (0 here, 1 there)"}


def test_a_line_that_begins_beyond_the_model_is_looked_at_inside_its_range() -> None:
    model, other = (mnemoscope.RNN(2, 4, dtype=torch.float64) for _ in range(2))
    found = landscape(model, **setting(), to=other.state_dict(), line=True, points=5, x_range=(0.5, 2))
    for name in ("fine_x", "zoom_x"):
        assert found.series[name].min() == 0.5
        assert found.series[name].max() <= 2


@pytest.mark.parametrize("wrong", [(1, 1), (2, 0), (0, float("inf")), (0,), "ab", 3])
def test_refuses_bad_ranges(wrong) -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match="x_range must"):
        landscape(mnemoscope.GRU(2, 4, dtype=torch.float64), **setting(), x_range=wrong)


def test_zero_parameters_are_not_called_smooth() -> None:
    """Directions have the parameters' own size: around zero nothing moves, and nothing was seen."""
    layer = nn.RNN(2, 3).double()
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    x, targets = torch.randn(5, 2, 2, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    found = landscape(layer, x, targets=targets, loss=nn.functional.mse_loss, points=3)
    assert "is the same at all points looked at" in found.sentence
    assert "smooth" not in found.sentence


def test_resolution_is_that_of_the_finest_line() -> None:
    """41 points on a sixteenth of the range from -0.5 to 0.5."""
    x, targets = torch.randn(5, 2, 2, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    found = landscape(nn.RNN(2, 3).double(), x, targets=targets, loss=nn.functional.mse_loss, points=3)
    assert found.figures["resolution"] == pytest.approx(1 / 40 / 16)
    np.testing.assert_allclose(found.series["zoom_x"], found.series["fine_x"] / 16, atol=1e-15)
