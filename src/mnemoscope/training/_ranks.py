"""The processes that share one run, as torchrun starts them: what they tell each other, and who writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mnemoscope.errors import MnemoscopeError

T = TypeVar("T")


class Ranks:
    """This process among those that train one model: its number and how many there are. Alone, it is 0 of 1.

    Each takes its rows of the same global batch, adds up its gradients with the others', and makes the same update.
    The first one owns the run folder. What one learns that the others must act on (a folder that is refused, the end of
    the run, a signal) is told to all in the same step, or they would wait for each other endlessly.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def rows(self, size: int) -> slice:
        """Return this rank's rows of a batch of `size` sequences; refused if the batch does not divide."""
        if size % self.world_size:
            count = self.world_size
            raise MnemoscopeError(
                f"batch-size = {size} does not divide among {count} processes; use a multiple of {count}"
            )
        share = size // self.world_size
        return slice(self.rank * share, (self.rank + 1) * share)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all ranks, in place: the same bits on each."""
        if self.world_size == 1:
            return
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
            dist.all_reduce(flat)
            for tensor, summed in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.detach().copy_(summed.view_as(tensor))

    def all_reduce_max(self, value: int) -> int:
        """Return the largest of all ranks' values."""
        if self.world_size == 1:
            return value
        shared = torch.tensor([value])
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return int(shared)

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order, on each of them."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def on_first(self, function: Callable[[], T]) -> T:
        """Call a function on the first rank and return its result on all; an error there is raised on all."""
        if self.world_size == 1:
            return function()
        told: list[Any] = [None, None]
        if self.is_first:
            try:
                told = [function(), None]
            except MnemoscopeError as error:
                told = [None, error]
        dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise told[1]
        result: T = told[0]
        return result

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Give all ranks the tensors of the first: a model that was initialized in each may differ."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the other processes of torchrun inside the block; without torchrun there are none."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield Ranks()
        return
    ours = not dist.is_initialized()
    if ours:
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank())
        # Its functions have the process group of this moment as a default argument. Imported later, as torch does by
        # itself, they would keep the group for good: its threads then live on as Python ends, which may abort it.
        import_module("torch.distributed.nn.functional")
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
        if ours:
            dist.barrier()  # a rank that leaves while another still talks to it may abort that one
    finally:
        if ours:
            dist.destroy_process_group()


def local_rank() -> int:
    """Return this process's number on its machine: the index of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def this_rank() -> int:
    """Return this process's number among those that torchrun started; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))
