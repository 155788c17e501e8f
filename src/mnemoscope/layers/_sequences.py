"""Sequences in every layout that nn.LSTM takes, and sequences in which others begin.

A sequence with new starts inside is cut there. Its pieces are the rows of a batch, which runs like any other; outputs
and last states are then put where they belong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels import is_recording, is_traced_or_transformed
from mnemoscope.layers._carried import AttentiveState, CarryingTensor
from mnemoscope.layers._checks import InputError, add_batch_axis, check_input, check_state
from mnemoscope.layers._memory import GROWING, Memory, drop_empty_slots, with_slots
from mnemoscope.recurrence import State, leaves, map_state, rebuild, reset, select
from mnemoscope.torch_internals import is_mapped

if TYPE_CHECKING:
    from mnemoscope.layers._base import Layer


# Packed sequences run in groups of like lengths if padding them would make at least _LARGE steps, and at least _MOSTLY
# times as many as they have.
_LARGE = 4096
_MOSTLY = 5


def run_any_layout(layer: Layer, x: Any, state: State | None, starts: Any) -> tuple[Any, State]:
    """Return the outputs in the layout of the input, and the last state: what `Layer.forward` promises."""
    if isinstance(x, PackedSequence):
        return _run_packed(layer, x, state, starts)
    check_input(layer, x)
    if x.dim() == 2:
        if state is not None:
            state = add_batch_axis(layer, state)
        if starts is not None:
            starts = check_starts(layer, starts, x.shape[:1]).unsqueeze(1)
        output, final = _run_time_first(layer, x.unsqueeze(1), state, starts)
        return output.squeeze(1), map_state(lambda t: t.squeeze(1), final)
    if starts is not None:
        starts = check_starts(layer, starts, x.shape[:2])
    if not layer.batch_first:
        return _run_time_first(layer, x, state, starts)
    starts = None if starts is None else starts.transpose(0, 1)
    output, final = _run_time_first(layer, x.transpose(0, 1), state, starts)
    return output.transpose(0, 1), final


def _run_time_first(layer: Layer, x: Tensor, state: State | None, starts: Tensor | None) -> tuple[Tensor, State]:
    if starts is not None and x.shape[1]:
        return _run_pieces(layer, x, state, starts, None)
    output, final = layer.run_sequence(x, state, None)
    if not torch.jit.is_tracing() and x.shape[0] == 1:  # after one step, the state is the output (`last_valid_state`)
        output = output.clone()
    return output, final


def _run_packed(layer: Layer, packed: PackedSequence, state: State | None, starts: Any) -> tuple[PackedSequence, State]:
    check_input(layer, packed.data, packed=True)
    data, sizes, order, back = packed
    x, lengths, places = _padded(data, sizes)
    if starts is None and not _is_mostly_padding(x, lengths):
        output, final = layer.run_sequence(x, state, lengths.to(x.device), order)
    else:
        starts = _starts_of_packed(layer, starts, x, order)
        if state is not None:
            state = check_state(layer, state, x, x.shape[1])
            state = state if order is None else select(state, order)
        output, final = _run_pieces(layer, x, state, starts, lengths)
    if back is not None:
        final = map_state(lambda t: t[:, back], final)
    if places is None:
        return PackedSequence(pack_padded_sequence(output, lengths).data, sizes, order, back), final
    return PackedSequence(output.flatten(0, 1).index_select(0, places), sizes, order, back), final


def _is_mostly_padding(x: Tensor, lengths: Tensor) -> bool:
    """True if sequences of x (time, batch, features) should run in groups of about the same length, on the CPU.

    There the padding costs what steps do: some products and gradients are made over all of it.
    """
    if not x.is_cpu or is_traced_or_transformed() or is_recording():  # what is recorded is one run
        return False
    padded = x.shape[0] * x.shape[1]
    return padded >= _LARGE and padded >= _MOSTLY * int(lengths.sum())


def _starts_of_packed(layer: Layer, starts: Any, x: Tensor, order: Tensor | None) -> Tensor:
    """Return the mask of new starts, (time, batch) as x is; all False if the caller gave none."""
    if starts is None:
        return torch.zeros(x.shape[:2], dtype=torch.bool)
    shape = x.shape[:2] if not layer.batch_first else (x.shape[1], x.shape[0])
    starts = check_starts(layer, starts, shape)
    starts = starts.transpose(0, 1) if layer.batch_first else starts
    return starts if order is None else starts[:, order.to(starts.device)]


def _padded(data: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return packed sequences side by side (time, batch, features), longest first, their lengths (batch,) on the CPU,
    and where each packed step lies among time * batch.

    Past its end a sequence repeats a step of its own; its length says that. Two gathers take the place of torch's
    copies, one for each step, which a trace of TorchScript needs: then the places are None.
    """
    if torch.jit.is_tracing():
        x, lengths = pad_packed_sequence(PackedSequence(data, sizes))
        return x, lengths, None
    steps, batch = len(sizes), int(sizes[0])
    row = torch.arange(batch)
    inside = row < sizes[:, None]  # (time, batch)
    lengths = inside.sum(0)
    first = (sizes.cumsum(0) - sizes)[:, None]  # of each time's rows among all packed ones
    source = torch.where(inside, first + row, row)
    x = data.index_select(0, source.flatten().to(data.device)).view(steps, batch, *data.shape[1:])
    return x, lengths, inside.flatten().nonzero().squeeze(1).to(data.device)


def in_autocast_dtype(tensor: Tensor) -> Tensor:
    """Return a tensor as nn.LSTM gives it under autocast: in autocast's dtype, whatever it was computed in."""
    return tensor.to(torch.get_autocast_dtype(tensor.device.type)) if tensor.dtype is torch.float32 else tensor


def check_starts(layer: Layer, starts: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the mask of new starts, of this shape, or raise an error that says what is wrong with it."""
    if layer.bidirectional:
        raise MnemoscopeError(
            f"{layer._get_name()}: starts= needs bidirectional=False: a state goes on in one direction of time only; "
            "run the pieces as sequences of their own, packed"
        )
    if torch.jit.is_tracing():
        raise InputError(f"{layer._get_name()}: starts= cannot be traced: the mask decides which steps run together")
    starts = torch.as_tensor(starts)
    if not torch.compiler.is_compiling() and is_mapped(starts):
        raise InputError(
            f"{layer._get_name()}: starts= cannot be mapped by vmap: the mask decides which steps run together; put "
            "the sequences side by side in one batch"
        )
    if starts.dtype is not torch.bool or starts.shape != shape:
        kind = str(starts.dtype).removeprefix("torch.")
        raise InputError(
            f"{layer._get_name()}: starts must be a mask of bool, {list(shape)}, True where a sequence begins; got "
            f"{list(starts.shape)} of {kind}"
        )
    return starts


class Piece(NamedTuple):
    """A sequence that begins inside another one: its row, its first step, and its number of steps.

    `carried` is True if it goes on from the caller's state, `last` if its row's final state is this one's.
    """

    row: int
    first: int
    length: int
    carried: bool
    last: bool


def cut_pieces(starts: Tensor, lengths: Tensor | None) -> list[Piece]:
    """Return the pieces of all rows: starts (time, batch), lengths (batch,) of the rows, None if they are equal."""
    steps, batch = starts.shape
    rows = starts.t().tolist()
    ends = [steps] * batch if lengths is None else lengths.tolist()
    pieces = []
    for row, (begins, end) in enumerate(zip(rows, ends, strict=True)):
        firsts = [0, *(t for t in range(1, end) if begins[t])]
        for first, following in zip(firsts, [*firsts[1:], end], strict=True):
            pieces.append(Piece(row, first, following - first, first == 0 and not begins[0], following == end))
    return pieces


# Steps of padding that cost less than another call: on a GPU a call is expensive, and more rows are nearly free.
_PADDING = 512
_PADDING_ON_GPU = 1 << 16


def group_pieces(pieces: list[Piece], apart: bool, padding: int = _PADDING) -> list[list[Piece]]:
    """Return pieces that run as one batch, longest first: of lengths such that at most a third of it is padding.

    `padding` steps of it do not count. With `apart`, those that go on from a state are in batches of their own.
    """
    groups: list[list[Piece]] = []
    carried = [piece for piece in pieces if piece.carried]
    begun = [piece for piece in pieces if not piece.carried]
    for chosen in (carried, begun) if apart else (carried + begun,):
        chosen.sort(key=lambda piece: -piece.length)
        used = 0  # steps of the last group
        for index, piece in enumerate(chosen):
            used += piece.length
            if index and groups[-1][0].length * (len(groups[-1]) + 1) <= 1.5 * used + padding:
                groups[-1].append(piece)
            else:
                groups.append([piece])
                used = piece.length
    return groups


def _run_pieces(
    layer: Layer, x: Tensor, state: State | None, starts: Tensor, lengths: Tensor | None
) -> tuple[Tensor, State]:
    """Return the outputs of x (time, batch, input_size) and the last state, with each piece run by itself."""
    steps, batch, _ = x.shape
    if state is not None:
        state = check_state(layer, state, x, batch)
    pieces = cut_pieces(starts, lengths)
    inputs = x.flatten(0, 1)
    places = torch.zeros(steps * batch, dtype=torch.int64)  # where the output of each step is among all outputs
    outputs: list[Tensor] = []
    finals: list[State] = []
    rows: list[int] = []
    made = 0
    apart = state is not None and not layer.constant_state_size
    for group in group_pieces(pieces, apart, _PADDING_ON_GPU if x.is_cuda else _PADDING):
        # The steps of the pieces, side by side: (longest, pieces). Past its end a piece repeats its last step.
        size = torch.tensor([piece.length for piece in group])
        first = torch.tensor([piece.first * batch + piece.row for piece in group])
        t = torch.arange(group[0].length)[:, None]
        source = first + torch.minimum(t, size - 1) * batch
        places[source[t < size]] = made + torch.arange(source.numel()).view_as(source)[t < size]
        made += source.numel()

        # One run of all of them; a last state that is a row's own is kept.
        gathered = inputs.index_select(0, source.flatten().to(x.device)).view(*source.shape, -1)
        before = _state_before(layer, state, group, x.device)
        uneven = size.to(x.device) if group[-1].length < group[0].length else None
        output, final = layer.run_sequence(gathered, before, uneven)
        outputs.append(output.flatten(0, 1))
        ended = [index for index, piece in enumerate(group) if piece.last]
        if ended:
            finals.append(select(final, ended))
            rows += [group[index].row for index in ended]

    together = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    output = together.index_select(0, places.to(x.device)).view(steps, batch, -1)
    return output, _joined(finals, rows)


def _state_before(layer: Layer, state: State | None, group: list[Piece], device: torch.device) -> State | None:
    """Return the state from which each piece of a group starts; None for the initial one of all."""
    if state is None or not any(piece.carried for piece in group):
        return None
    before = select(state, torch.tensor([piece.row for piece in group], device=device))
    begins = torch.tensor([not piece.carried for piece in group], device=device)
    initial = None if layer.starts_from_zero() else layer.coerce_state(layer.initial_state(1))
    return reset(before, begins, initial)


def _joined(states: list[State], rows: list[int]) -> State:
    """Return several states as one; `rows` says which row of it each of their sequences is, in order."""
    memories = [state.memory for state in states if isinstance(state, AttentiveState | CarryingTensor)]
    slots = max((memory.origin.shape[-1] for memory in memories), default=0)
    if memories:
        states = [_with_memory(state, with_slots(state.memory, slots)) for state in states]
    if len(states) > 1:
        states = [rebuild(states[0], [torch.cat(parts, 1) for parts in zip(*map(leaves, states), strict=True)])]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    state = select(states[0], order)
    if memories and state.memory_layout in GROWING:
        state = _with_memory(state, drop_empty_slots(state.memory))
    return state


def _with_memory(state: State, memory: Memory) -> State:
    return rebuild(state, [*state.visible, state.s, *memory])
