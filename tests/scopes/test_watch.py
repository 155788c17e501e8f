import math
import sys
import types

import pytest
import torch
from torch import nn

from mnemoscope import LSTM, MnemoscopeError
from mnemoscope.scopes import Watch, horizon, lightning_callback


def training(watching):
    torch.manual_seed(0)
    model, x = LSTM(3, 8, 2, dropout=0.2), torch.randn(12, 8, 3)
    head = nn.Linear(8, 1)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-2)
    watch = Watch(model, x, every=2) if watching else None
    for _ in range(6):
        optimizer.zero_grad()
        loss = (head(model(x)[0]) - x[..., :1]).square().mean()
        loss.backward()
        optimizer.step()
        if watch is not None:
            watch()
    return watch, torch.cat([p.detach().flatten() for p in parameters])


def test_watch_does_not_change_training():
    assert torch.equal(training(False)[1], training(True)[1])


def test_watch_history_and_finding():
    watch, _ = training(True)
    assert [look["update"] for look in watch.history] == [2, 4, 6]
    found = watch.finding()
    assert found.series["horizon"].shape == (3,)
    assert 0 < found.figures["lambda"] < 2
    assert "update 2 to 6" in found.sentence


def test_look_equals_the_horizon_scope():
    model, x = LSTM(3, 8), torch.randn(20, 4, 3)
    assert Watch(model, x).look()["horizon"] == horizon(model, x).figures["horizon"]


def test_look_sees_a_trained_embedding():
    """The features that a layer reads are made anew at every look."""
    model = nn.Sequential(nn.Embedding(5, 3), LSTM(3, 8, batch_first=True))
    watch = Watch(model, torch.randint(0, 5, (4, 20)))
    one = watch.look()
    with torch.no_grad():
        model[0].weight.mul_(30)
    assert watch.look()["rate"] != one["rate"]


def test_diverged_training_is_recorded_as_nan():
    model = LSTM(3, 8)
    watch = Watch(model, torch.randn(20, 4, 3), every=1)
    model.weight_hh_l0.data.fill_(torch.nan)
    assert math.isnan(watch()["horizon"])
    assert len(watch.history) == 1


def test_what_was_not_measured_is_not_told_as_a_number():
    model = LSTM(3, 8)
    watch, never = (Watch(model, torch.randn(20, 4, 3), every=1) for _ in range(2))
    watch()
    assert watch.finding().sentence.startswith("At update 1 the horizon of gradients is ")
    watch()
    model.weight_hh_l0.data.fill_(torch.nan)
    watch()
    assert watch.finding().sentence.startswith("From update 1 to 2 the horizon")
    assert watch.finding().sentence.endswith("; later looks failed, the last at update 3.")
    never()
    assert never.finding().sentence == "No look could measure the horizon."
    without_step = Watch(nn.Linear(3, 2), torch.randn(2, 9, 3), every=1)
    without_step()
    assert "nan" not in without_step.finding().sentence


def test_log_is_called():
    logged = []
    watch = Watch(nn.GRU(3, 4), torch.randn(9, 2, 3), every=2, log=logged.append)
    watch()
    watch()
    assert [figures["update"] for figures in logged] == [2]


def test_lambda_is_nan_without_a_step():
    assert math.isnan(Watch(nn.Linear(3, 2), torch.randn(2, 9, 3)).look()["lambda"])


def test_watch_uses_few_sequences():
    assert list(Watch(nn.GRU(3, 4, batch_first=True), torch.randn(9, 12, 3), sequences=2).inputs.shape) == [2, 12, 3]
    assert list(Watch(nn.GRU(3, 4), torch.randn(9, 12, 3), sequences=2).inputs.shape) == [9, 2, 3]


class Summed(nn.Module):
    """Wants a gain for each sequence, and returns a loss before its outputs."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 8)

    def forward(self, x, gain):
        assert gain.shape == (x.shape[1], 1)
        return {"loss": x.sum(), "noise": torch.zeros(len(x), x.shape[1], 8), "y": self.rnn(x * gain)[0]}


def test_watch_takes_the_options_of_examine():
    model, x, gain = Summed(), torch.randn(20, 6, 3), torch.rand(6, 1)
    watch = Watch(model, x, sequences=4, batch_first=False, kwargs={"gain": gain}, output="y")
    expected = horizon(model, x[:, :4], batch_first=False, kwargs={"gain": gain[:4]}, output="y")
    assert watch.look()["horizon"] == expected.figures["horizon"] > 1
    with pytest.raises(MnemoscopeError, match="gain"):
        Watch(model, x, batch_first=False)


def test_watch_reads_channels_first():
    model = nn.Conv1d(3, 8, 4)
    x = torch.randn(4, 3, 20)
    looked = Watch(model, x, channels_first=True).look()["horizon"]
    assert looked == horizon(model, x, channels_first=True).figures["horizon"]


def test_finding_before_the_first_look():
    assert Watch(nn.GRU(3, 4), torch.randn(9, 2, 3)).finding().status == "not applicable"


@pytest.mark.parametrize("options", [{"every": 0}, {"sequences": 0}, {"fraction": 1}])
def test_refuses_wrong_options(options):
    (name,) = options
    with pytest.raises(MnemoscopeError, match=f"^{name} must .*; got {options[name]}$"):
        Watch(nn.GRU(3, 4), torch.randn(9, 2, 3), **options)


def test_watch_refuses_inputs_that_do_not_fit():
    with pytest.raises(MnemoscopeError, match="must be a tensor"):
        Watch(nn.GRU(3, 4), None)


class Module(nn.Module):
    """As much of a LightningModule as the callback uses."""

    device = torch.device("cpu")

    def __init__(self):
        super().__init__()
        self.rnn, self.logged = nn.GRU(3, 4, batch_first=True), []

    def forward(self, x):
        return self.rnn(x)[0]

    def log_dict(self, figures):
        self.logged.append(figures)


def test_lightning_callback_logs_through_the_module(monkeypatch):
    fake = types.ModuleType("lightning.pytorch")
    fake.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", fake)
    module, callback = Module(), lightning_callback(torch.randn(2, 9, 3), every=2)
    assert isinstance(callback, fake.Callback)
    callback.on_train_start(None, module)
    for batch in range(4):
        callback.on_train_batch_end(None, module, None, None, batch)
    assert [sorted(figures) for figures in module.logged] == [["memory/horizon", "memory/lambda", "memory/rate"]] * 2


def test_lightning_missing(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MnemoscopeError, match="pip install lightning"):
        lightning_callback(torch.randn(2, 9, 3))


def test_lightning_trainer():
    pl = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

        def training_step(self, batch, _):
            x, y = batch
            return (self(x) - y).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    x = torch.randn(32, 10, 3)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, 0, :1]), 8)
    callback = lightning_callback(x[:4], every=2)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **quiet)
    trainer.fit(Net(), data)
    assert [look["update"] for look in callback.watch.history] == [2, 4]
    assert float(trainer.callback_metrics["memory/horizon"]) == callback.watch.history[-1]["horizon"]
