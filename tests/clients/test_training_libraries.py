"""Libraries that train a model and rebuild what it returns: the state goes in and out of them with its memory."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mnemoscope
from mnemoscope.layers import CarryingTensor
from mnemoscope.recurrence import leaves
from mnemoscope.scopes import lightning_callback

TIME, BATCH, INPUT, HIDDEN = 6, 4, 3, 8
LAYERS = [mnemoscope.RelLSTM, mnemoscope.RelRNN, mnemoscope.LSTM]
every_layer = pytest.mark.parametrize("kind", LAYERS)


class Streaming(nn.Module):
    """A model that returns its state, for the next piece of the sequence."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.layer = kind(INPUT, HIDDEN)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        output, state = self.layer(x, state)
        return self.head(output), state


def hidden(state: Any) -> Tensor:
    return state[0] if isinstance(state, tuple) else state


def check_two_pieces(model: nn.Module, plain: Streaming, tolerance: float, backward: Any = Tensor.backward) -> None:
    """Run two pieces through a library's model, and compare with the plain one; nothing may be lost."""
    x = torch.randn(2 * TIME, BATCH, INPUT)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*without its memory")
        first, state = model(x[:TIME])
        second, last = model(x[TIME:], state)
    assert isinstance(hidden(last), CarryingTensor) or isinstance(plain.layer, mnemoscope.LSTM)
    assert {t.dtype for t in leaves(state) if t.is_floating_point()} == {torch.float32}
    expected, _ = plain(x)
    torch.testing.assert_close(torch.cat([first, second]).float(), expected, rtol=tolerance, atol=tolerance)
    backward(second.sum())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_layer
@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_fabric(kind: type, precision: str) -> None:
    """A sequence in two pieces through a module of Fabric, in bf16-mixed and float32: the memory is carried on."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    plain = Streaming(kind)
    check_two_pieces(fabric.setup(plain), plain, 0.05 if precision == "bf16-mixed" else 1e-5, fabric.backward)


@pytest.mark.clients
@every_layer
@pytest.mark.parametrize("precision", ["bf16", "no"])
def test_accelerate(kind: type, precision: str) -> None:
    """A sequence in two pieces through a prepared module, in bf16 and float32: the memory is carried on."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed (extra `clients`)")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True)
    plain = Streaming(kind)
    check_two_pieces(accelerator.prepare(plain), plain, 0.05 if precision == "bf16" else 1e-5)


@every_layer
def test_lightning_utilities_and_fsdp_rebuild_states(kind: type) -> None:
    """States that `apply_to_collection`, and FSDP's like function, take apart and rebuild keep type and memory."""
    from lightning_utilities.core.apply_func import apply_to_collection
    from torch.distributed.utils import _apply_to_tensors

    layer, x = kind(INPUT, HIDDEN), torch.randn(TIME, BATCH, INPUT)
    state = layer(x)[1]
    expected = layer(x, state)[0]
    for rebuilt in (apply_to_collection(state, Tensor, Tensor.detach), _apply_to_tensors(Tensor.detach, state)):
        assert type(rebuilt) is type(state)
        torch.testing.assert_close(layer(x, rebuilt)[0], expected)


def test_lightning_callback_is_pickled() -> None:
    """The callback that watches the memory is pickled, as ddp_spawn does."""
    pytest.importorskip("lightning", reason="Lightning is not installed")
    callback = lightning_callback(torch.randn(2, 9, 3), every=7, prefix="m/", tolerance=0.1)
    restored = pickle.loads(pickle.dumps(callback))
    assert (restored.every, restored.prefix, restored.options) == (7, "m/", {"tolerance": 0.1})
    assert torch.equal(restored.inputs, callback.inputs)


@pytest.mark.clients
def test_lightning_in_two_spawned_processes(tmp_path: Path) -> None:
    """Training in two processes by `strategy="ddp_spawn"`, with the callback that watches the memory."""
    pytest.importorskip("lightning", reason="Lightning is not installed")
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained and moved" in done.stdout


SPAWNED = """
import lightning.pytorch as pl
import torch
from torch import nn

import mnemoscope
from mnemoscope.scopes import lightning_callback


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = mnemoscope.RelLSTM(3, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])

    def training_step(self, batch, _):
        x, y = batch
        return (self(x) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


if __name__ == "__main__":
    x = torch.randn(32, 10, 3)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, 0, :1]), 4)
    net = Net()
    before = net.rnn.weight_hh_l0.detach().clone()
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp_spawn",
        callbacks=[lightning_callback(x[:4], every=2)], **quiet
    )
    trainer.fit(net, data)
    assert not torch.equal(before, net.rnn.weight_hh_l0)
    assert "memory/horizon" in trainer.callback_metrics
    print("trained and moved")
"""


class WithLoss(nn.Module):
    """What Hugging Face's Trainer takes: a dictionary with the loss, the logits and the state."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.layer = kind(INPUT, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        output, state = self.layer(x)
        logits = self.head(output[:, -1])
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits, "state": state}


@pytest.mark.clients
@every_layer
def test_hugging_face_trainer_with_states(kind: type, tmp_path: Path) -> None:
    """HF Trainer in bf16 trains, evaluates and predicts with a model that returns its state beside the logits."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `hf`)")
    pytest.importorskip("accelerate", reason="accelerate is not installed (extra `clients`)")
    data = [{"x": torch.randn(TIME, INPUT), "labels": torch.tensor(k % 2)} for k in range(16)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=4, per_device_eval_batch_size=4, report_to=[],
        use_cpu=True, disable_tqdm=True, save_strategy="no", bf16=True,
    )  # fmt: skip
    trainer = transformers.Trainer(WithLoss(kind), arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    predicted = trainer.predict(data)
    assert predicted.predictions[0].shape == (16, 2)
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.clients
@every_layer
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_graph(kind: type, tmp_path: Path) -> None:
    """`SummaryWriter.add_graph` of a model that returns its state."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(Streaming(kind), torch.randn(TIME, BATCH, INPUT))
    assert any(path.stat().st_size > 1000 for path in tmp_path.iterdir())


WITHOUT_FASTAI = "fastai is not installed (`make clients` installs it without its torchvision, which replaces torch)"


@pytest.mark.clients
@every_layer
def test_fastai_resets_models(kind: type) -> None:
    """A Learner with ModelResetter trains: it calls `reset()`, without arguments, of whatever has it."""
    basics = pytest.importorskip("fastai.basics", reason=WITHOUT_FASTAI)
    from fastai.callback.rnn import ModelResetter

    x = torch.randn(32, TIME, INPUT)
    data = torch.utils.data.TensorDataset(x, x[:, 0, :1])
    loaders = basics.DataLoaders(basics.DataLoader(data, bs=8), basics.DataLoader(data, bs=8))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(INPUT, HIDDEN, batch_first=True)
            self.head = nn.Linear(HIDDEN, 1)

        def reset(self) -> None:
            for child in self.children():
                if hasattr(child, "reset"):
                    child.reset()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    learner = basics.Learner(loaders, Net(), loss_func=nn.MSELoss(), cbs=[ModelResetter()])
    with learner.no_logging():
        learner.fit(1)


@pytest.mark.clients
@pytest.mark.parametrize("kind", [mnemoscope.RelLSTM, mnemoscope.MemLSTM, mnemoscope.LSTM])
def test_fastai_language_model(kind: type) -> None:
    """AWD_LSTM with our layer inside its WeightDropout: a language model learns with fastai's callbacks; the memory
    goes from batch to batch, also to a larger one, and is empty after `reset()`."""
    basics = pytest.importorskip("fastai.basics", reason=WITHOUT_FASTAI)
    from fastai.callback.rnn import rnn_cbs
    from fastai.text.models.awdlstm import AWD_LSTM, WeightDropout
    from fastai.text.models.core import LinearDecoder, SequentialRNN

    class OurAWD(AWD_LSTM):
        def _one_rnn(self, n_in: int, n_out: int, bidir: bool, weight_p: float, l: int) -> nn.Module:
            return WeightDropout(kind(n_in, n_out, batch_first=True, bidirectional=bidir), weight_p)

    torch.manual_seed(0)
    encoder = OurAWD(vocab_sz=11, emb_sz=8, n_hid=12, n_layers=2)
    model = SequentialRNN(encoder, LinearDecoder(11, 8, 0.1, tie_encoder=encoder.encoder))
    tokens = (torch.arange(40 * 7) % 9 + 2).view(40, 7)
    data = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    loaders = basics.DataLoaders(basics.DataLoader(data, bs=8), basics.DataLoader(data, bs=8))
    learner = basics.Learner(loaders, model, loss_func=basics.CrossEntropyLossFlat(), cbs=rnn_cbs(alpha=2, beta=1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with learner.no_logging():
        learner.fit(1, lr=0.01)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())

    # The state that the encoder keeps goes on: two pieces are the whole, for the first two sequences of each batch.
    model.eval()
    with torch.no_grad():
        model.reset()
        whole = encoder(tokens[:4])
        model.reset()
        encoder(tokens[:2, :4])
        second = encoder(tokens[:4, 4:])  # a larger batch: zeros are put beside the state
        torch.testing.assert_close(second[:2], whole[:2, 4:])
        model.reset()
        torch.testing.assert_close(encoder(tokens[:4]), whole)
