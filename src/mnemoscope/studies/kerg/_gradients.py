"""The gradient of the loss by every state, as the authors plot it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope import kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Task
from mnemoscope.training import SequenceModel

ANSWERS = 10  # steps of the loss: those that ask for a symbol


def log_gradient_norms(model: SequenceModel, task: Task, sequences: int) -> Tensor:
    """Return log ||dL/dh_t|| (T,), the mean over test sequences; paths through attention count.

    L is the cross-entropy of the last ten steps, a sum divided by all steps (`loss2` of the authors' code).
    """
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    device = model.readout.weight.device
    inputs, targets = (tensor.to(device) for tensor in task.batch(0, sequences, "test"))
    with kernels.recording() as runs:
        outputs, _ = model(inputs)
    if len(runs) != 1:
        raise MnemoscopeError("the gradients of states need compiled kernels; build them: pip install -e .")
    answers = F.cross_entropy(outputs[-ANSWERS:].flatten(0, 1), targets[-ANSWERS:].flatten(), reduction="sum")
    loss = answers / len(inputs)  # of every sequence: the gradient of a sum has each one's own
    (run,) = runs
    found = torch.autograd.grad(loss, run.inputs, allow_unused=True, materialize_grads=True)
    norms = run.total_gradient(*found).norm(dim=-1)  # (T, B)
    return norms.clamp_min(torch.finfo(norms.dtype).tiny).log().mean(1).detach().cpu()
