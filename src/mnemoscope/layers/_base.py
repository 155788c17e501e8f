"""nn.LSTM's interface over any recurrence's equations.

A subclass of `Layer` states the mathematics of one layer in one direction; stacking, both directions, dropout, packed
and unbatched input, initial and final states, errors and the loop over time are here, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from mnemoscope import kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers._checks import check_arguments, check_bool, check_input, check_state, misfit
from mnemoscope.layers._options import naming_unknown_options
from mnemoscope.recurrence import Recurrence, State, leaves, map_state, rebuild


class Weights:
    """The parameters of one layer in one direction, by their names without the suffix: ``w.weight_hh``."""

    def __init__(self, **parameters: Tensor) -> None:
        for name, parameter in parameters.items():  # a SimpleNamespace would do, if torch.compile could trace it
            setattr(self, name, parameter)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor: ...
        def __setattr__(self, name: str, value: Tensor) -> None: ...


class Layer(Recurrence):
    """A stack of equal recurrences with nn.LSTM's arguments, call and results.

    A subclass gives, for one layer in one direction:

    - ``shapes(input_size)``: the names and shapes of its parameters (registered as ``name_l0``, ``name_l0_reverse``)
    - ``project(w, x)``: what the input contributes, for any leading dimensions; one product for the whole sequence
    - ``cell(w, u, state)``: the equations of one step, with u = project(w, x_t)
    - ``start(w, batch)``: the state before the first step
    - ``reset(name, tensor)``: how a parameter is initialised, where not as in nn.LSTM

    Args:
        input_size: features of one step's input.
        hidden_size: features of the hidden state.
        num_layers: layers stacked upon each other.
        bias: whether the equations have their bias terms.
        batch_first: input and output are (batch, time, features) instead of (time, batch, features).
        dropout: probability with which outputs between layers are dropped in training.
        bidirectional: run a second recurrence from the end to the start and give both outputs.
        proj_size: nn.LSTM's, for scripts that name it; only 0, no projection, is allowed.
        checkpoint: keep activations for the backward pass at about sqrt(T) steps only and make the others again, one
            more forward pass for a fraction of the memory. Full attention keeps all its states in any case.
    """

    bounded: ClassVar[bool] = True  # whether the state stays of one size, however long the sequence
    visible: ClassVar[tuple[str, ...]] = ("h",)  # what a state unpacks into, each (layers * directions, batch, hidden)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = naming_unknown_options(cls.__init__)  # type: ignore[method-assign]

    @naming_unknown_options
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        checkpoint: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_arguments(self, input_size, hidden_size, num_layers, dropout, proj_size)
        check_bool(self, "bias", bias)
        check_bool(self, "batch_first", batch_first)
        check_bool(self, "bidirectional", bidirectional)
        check_bool(self, "checkpoint", checkpoint)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.checkpoint = checkpoint
        for suffix, size in self._places():
            for name, shape in self.shapes(size).items():
                parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(f"{name}_{suffix}", parameter)
        self._names = tuple(self.shapes(input_size))
        self.reset_parameters()

    # What a subclass states.

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        raise TypeError(f"{type(self).__name__} must say the names and shapes of its parameters")

    def project(self, w: Weights, x: Tensor) -> Tensor:
        """U x + b for any leading dimensions, with both of torch's biases."""
        return affine(x, w.weight_ih, w.bias_ih + w.bias_hh if self.bias else None)

    def feed(self, w: Weights, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """What a kernel reads: U x + b and V, or, where it makes the projection itself, [x, 1] and [V, U, b]."""
        if not self.follows(Layer, "project") or not kernels.joins(x, w.weight_hh, lengths):
            return self.project(w, x), w.weight_hh
        return kernels.join(x, w.weight_ih, w.bias_ih + w.bias_hh if self.bias else None, w.weight_hh)

    def cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State]:
        raise TypeError(f"{type(self).__name__} must say the equations of one step")

    def start(self, w: Weights, batch: int) -> State:
        zeros = [w.weight_hh.new_zeros(batch, self.hidden_size) for _ in self.visible]
        return zeros[0] if len(zeros) == 1 else tuple(zeros)

    def reset(self, name: str, tensor: Tensor) -> None:
        nn.init.uniform_(tensor, -1 / math.sqrt(self.hidden_size), 1 / math.sqrt(self.hidden_size))

    # What follows from it.

    @property
    def output_size(self) -> int:
        return self.step_size * self.num_directions

    @property
    def step_size(self) -> int:
        """Features of one direction's output."""
        return self.hidden_size

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _places(self) -> list[tuple[str, int]]:
        """The suffix and the input size of each layer and direction, in the order of the state's first dimension."""
        directions = ("", "_reverse")[: self.num_directions]
        sizes = [self.input_size] + [self.output_size] * (self.num_layers - 1)
        return [(f"l{layer}{direction}", size) for layer, size in enumerate(sizes) for direction in directions]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for suffix, _ in self._places():
            for name in self._names:
                self._redraw(name, f"{name}_{suffix}")

    def _redraw(self, name: str, registered: str) -> None:
        tensor = getattr(self, registered)
        self.reset(name, tensor)
        if parametrize.is_parametrized(self, registered):  # what was drawn is a copy
            setattr(self, registered, tensor)

    def weights(self, place: int) -> Weights:
        """The parameters of one layer and direction, read (and, where parametrized, computed) once for many steps."""
        suffix = self._places()[place][0]
        return Weights(**{name: self.read(f"{name}_{suffix}") for name in self._names})

    def read(self, registered: str) -> Tensor:
        """A parameter by its registered name."""
        return getattr(self, registered)

    def initial_state(self, batch: int) -> State:
        return stack([self.start(self.weights(place), batch) for place in range(self.num_layers * self.num_directions)])

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.observe(x, state)[:2]

    def observe(self, x: Tensor, state: State) -> tuple[Tensor, State, tuple[Tensor, ...] | None]:
        state = self.adopt(state)
        if self.bidirectional:
            raise MnemoscopeError(
                f"a bidirectional {self._get_name()} has no step: its output at t depends on later inputs; "
                "call it on the whole sequence, or examine a layer with bidirectional=False"
            )
        after, seen = [], []
        for place, before in enumerate(unstack(state)):
            w = self.weights(place)
            x, new, attention = self.observe_cell(w, self.project(w, x), before)
            x = self._drop(x, place)
            after.append(new)
            seen.append(attention)
        return x, stack(after), None if seen[0] is None else tuple(s for s in seen if s is not None)

    def observe_cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        """`cell`, and the attention weights it used (batch, slots), where there are any."""
        return *self.cell(w, u, state), None

    def _drop(self, x: Tensor, layer: int) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if layer < self.num_layers - 1 else x

    def forward(self, x: Any, state: State | None = None) -> tuple[Any, State]:
        """Run over a sequence, as nn.LSTM does.

        Args:
            x: (time, batch, input_size), (batch, time, input_size) with ``batch_first``, (time, input_size) unbatched,
                or a PackedSequence.
            state: the state to start from; zeros, and an empty memory, where none is given.

        Returns:
            The outputs in the layout of x with ``output_size`` features, and the last state, every tensor of it
            (layers * directions, batch, ...), or (layers * directions, ...) for unbatched input.
        """
        if isinstance(x, PackedSequence):
            return self._forward_packed(x, state)
        check_input(self, x)
        if x.dim() == 2:
            state = None if state is None else map_state(lambda t: t.unsqueeze(1), state)
            output, final = self._forward(x.unsqueeze(1), state, None)
            return output.squeeze(1), map_state(lambda t: t.squeeze(1), final)
        if not self.batch_first:
            return self._forward(x, state, None)
        output, final = self._forward(x.transpose(0, 1), state, None)
        return output.transpose(0, 1), final

    def _forward_packed(self, packed: PackedSequence, state: State | None) -> tuple[PackedSequence, State]:
        check_input(self, packed.data, packed=True)
        data, sizes, order, back = packed
        x, lengths = pad_packed_sequence(PackedSequence(data, sizes))  # sequences stay sorted, longest first
        if state is not None and order is not None:
            state = map_state(lambda t: t[:, order], check_state(self, state, x))
        output, final = self._forward(x, state, lengths.to(x.device))
        if back is not None:
            final = map_state(lambda t: t[:, back], final)
        return PackedSequence(pack_padded_sequence(output, lengths).data, sizes, order, back), final

    def _forward(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """x (time, batch, input), rows of the given lengths -> outputs, zero past the lengths, and the last state."""
        weights = [self.weights(place) for place in range(self.num_layers * self.num_directions)]
        if state is not None:
            states = unstack(check_state(self, state, x))
        elif self.follows(Layer, "initial_state"):  # the same, without computing parametrized weights again
            states = [self.start(w, x.shape[1]) for w in weights]
        else:
            states = unstack(self.initial_state(x.shape[1]))
        finals: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self.num_directions):
                place = len(finals)
                turned = reverse(x, lengths) if direction else x
                output, final = self.run(weights[place], turned, states[place], lengths)
                outputs.append(reverse(output, lengths) if direction else output)
                finals.append(final)
            x = self._drop(outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1), layer)
        return x, stack(finals)

    def run(self, w: Weights, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """One layer in one direction over time: by a fused kernel where there is one, else step by step."""
        if self.checkpoint and self.bounded and torch.is_grad_enabled():
            return self._run_in_pieces(w, x, state, lengths)
        return self._run_whole(w, x, state, lengths)

    def _run_whole(self, w: Weights, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        fused = self.fused(w, x, state, lengths)
        return self.loop(w, x, state, lengths) if fused is None else fused

    def _run_in_pieces(self, w: Weights, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """About sqrt(T) pieces of about sqrt(T) steps, of which only the first states are kept for the way back."""
        size = math.isqrt(len(x) - 1) + 1
        again: dict[str, Any] = {"context_fn": lambda: (nullcontext(), kernels.AsNow())}
        if torch.compiler.is_compiling():  # which runs nothing again but what it has traced
            again = {}
        outputs = []
        for start in range(0, len(x), size):
            rest = None if lengths is None else (lengths - start).clamp(0, size)
            piece = w, x[start : start + size], state, rest
            output, state = checkpoint(self._run_whole, *piece, use_reentrant=False, preserve_rng_state=False, **again)
            outputs.append(output)
        return torch.cat(outputs), state

    def fused(self, w: Weights, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State] | None:
        """What `loop` gives, by a kernel; None where none applies."""
        return None

    def follows(self, owner: type, *methods: str) -> bool:
        """Whether these methods are still the owner's: no kernel may stand in for equations that a subclass changed."""
        return all(getattr(type(self), name) is getattr(owner, name) for name in methods)

    def loop(self, w: Weights, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The readable equations, one step after the other: what every kernel is measured against."""
        outputs, made, noting = [], [], kernels.noting(lengths)
        for t, u in enumerate(self.project(w, x).unbind(0)):
            output, new = self.cell(w, u, state)
            if noting:
                made.append(leaves(new)[0])  # h: the rest of the state is made from this tensor, or does without it
            if lengths is not None:
                active = t < lengths  # (batch,)
                output, new = hold(active, output, torch.zeros_like(output)), self.hold(active, new, state)
            state = new
            outputs.append(output)
        if noting:
            kernels.note(torch.stack(made), tuple(made), lambda *found: torch.stack(found))
        return torch.stack(outputs), state

    def adopt(self, state: State) -> State:
        """A state handed in by the caller, in the form that the layer works with."""
        tensors = (state,) if isinstance(state, Tensor) else state
        if not isinstance(tensors, tuple | list) or len(tensors) != len(self.visible):
            raise misfit(self, state)
        if not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise misfit(self, state)
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def hold(self, active: Tensor, new: State, old: State) -> State:
        """The new state where a sequence is still running, the old one where it has ended."""
        pairs = zip(leaves(new), leaves(old), strict=True)
        return rebuild(new, [hold(active, after, before) for after, before in pairs])

    def _get_name(self) -> str:
        return type(self).__name__.removeprefix("Parametrized")  # torch renames a class that it parametrizes

    def flatten_parameters(self) -> None:
        """Nothing to do; here because scripts written for nn.LSTM call it."""

    def extra_repr(self) -> str:
        shown = [f"{self.input_size}, {self.hidden_size}"]
        defaults: dict[str, Any] = dict(num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False)
        shown += [f"{name}={getattr(self, name)}" for name, usual in defaults.items() if getattr(self, name) != usual]
        return ", ".join(shown + self.options_repr())

    def options_repr(self) -> list[str]:
        """A subclass's own options, for its printed form."""
        return []


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear, made for a whole sequence (time, batch, inputs) on the CPU.

    There b is the weight of one more input, which is always 1: one pass over the result instead of two, and in the
    backward pass one product for both gradients, in the layout that BLAS is fastest at.
    """
    if x.dim() != 3 or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    rows = x.reshape(x.shape[0] * x.shape[1], x.shape[2])
    if bias is not None:
        rows, weight = F.pad(rows, (0, 1), value=1.0), torch.cat([weight, bias[:, None]], 1)
    return (rows @ weight.t().contiguous()).view(*x.shape[:2], weight.shape[0])


def hold(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, old)


def stack(states: list[State]) -> State:
    """The states of the layers as one: tensors (batch, ...) become (layers * directions, batch, ...)."""
    if len(states) == 1:  # a view: the usual case copies nothing
        return map_state(lambda t: t.unsqueeze(0), states[0])
    return rebuild(states[0], [torch.stack(tensors) for tensors in zip(*map(leaves, states), strict=True)])


def unstack(state: State) -> list[State]:
    count = len(leaves(state)[0])
    return [map_state(lambda t, k=k: t[k], state) for k in range(count)]  # type: ignore[misc]


def reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Turn each sequence around within its own length; what lies beyond stays where it is."""
    if lengths is None:
        return x.flip(0)
    t = torch.arange(x.shape[0], device=x.device)[:, None]  # (time, 1)
    source = torch.where(t < lengths, lengths - 1 - t, t)  # (time, batch)
    return x.gather(0, source[..., None].expand_as(x))


def identity(z: Tensor) -> Tensor:  # of the module, not a lambda, so that layers can be pickled
    return z


def pointwise(name: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The pointwise non-linearity of a name, or the given function itself."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh": torch.tanh,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "identity": identity,
    }
    if callable(name):
        return name
    if name not in known:
        raise MnemoscopeError(f"nonlinearity must be one of {', '.join(known)}, modrelu or a function; got {name!r}")
    return known[name]
