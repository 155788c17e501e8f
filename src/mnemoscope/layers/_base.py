"""nn.LSTM's interface over any recurrence's equations.

A subclass of `Layer` states the mathematics of one layer in one direction. Stacking, both directions, dropout, initial
and final states are here, once. Layouts of the input are in `_sequences.py`, the loop over time in `_run.py`.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from mnemoscope import kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers._checks import (
    check_arguments,
    check_bool,
    check_state,
    check_step_input,
    state_error,
    weight_error,
)
from mnemoscope.layers._options import naming_unknown_options
from mnemoscope.layers._projection import project_sequence
from mnemoscope.layers._run import KernelChoice, KernelSpec, run
from mnemoscope.layers._sequences import in_autocast_dtype, run_any_layout
from mnemoscope.layers._state import reverse_sequences, stack_layers, unstack_layers, where_active
from mnemoscope.layers._torch_interface import Described, Unquantized
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import Attention, Recurrence, State, leaves, map_state, rebuild
from mnemoscope.torch_internals import is_fx_proxy


class Layer(Described, Unquantized, Recurrence):
    """A stack of equal recurrences with nn.LSTM's arguments, call and results.

    A subclass gives, for one layer in one direction:

    - ``shapes(input_size)``: the names and shapes of its parameters (registered as ``name_l0``, ``name_l0_reverse``)
    - ``project(w, x)``: what the input contributes, for any leading dimensions; one product for the whole sequence
    - ``cell(w, u, state)``: the equations of one step, with u = project(w, x_t)
    - ``initial_cell_state(w, batch)``: the state before the first step, if it is not zero
    - ``init_parameter(name, tensor)``: how a parameter is initialized, if not as in nn.LSTM
    - ``kernel_spec()`` and ``run_kernel(...)``: the fused kernel that computes the same, if there is one

    A subclass with options of its own sets them before it calls this constructor, which asks for the shapes.

    Args:
        input_size: features of one step's input.
        hidden_size: features of the hidden state.
        num_layers: layers stacked upon each other.
        bias: whether the equations have their bias terms.
        batch_first: input and output are (batch, time, features) instead of (time, batch, features).
        dropout: probability with which outputs between layers are dropped in training.
        bidirectional: run a second recurrence from the end to the start and give both outputs.
        proj_size: features of a projected h, for an LSTM with or without a memory; 0 for no projection.
        checkpoint: keep activations for the backward pass at about sqrt(T) steps only and compute the others again, one
            more forward pass for a fraction of the memory. Full attention keeps all its states in any case.
    """

    constant_state_size: ClassVar[bool] = True
    """Whether the state has the same size after any number of steps."""
    state_names: ClassVar[tuple[str, ...]] = ("h",)
    """What a state unpacks into, each (layers * directions, batch, its one of `state_sizes`)."""
    has_projection: ClassVar[bool] = False
    """Whether the equations know `proj_size`."""

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
        nn.Module.__init__(self)  # some layers are nn.RNNBase too, whose constructor would make torch's weights
        check_arguments(self, input_size, hidden_size, num_layers, dropout, proj_size)
        switches = {"bias": bias, "batch_first": batch_first, "bidirectional": bidirectional, "checkpoint": checkpoint}
        for option, value in switches.items():
            check_bool(self, option, value)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self.checkpoint = checkpoint

        # Of each layer and direction: the parameters' shapes by name, and the names with which they are registered.
        self._shapes = [self.shapes(size) for _, size in self._suffixes()]
        self._registered = [{name: f"{name}_{suffix}" for name in self._shapes[0]} for suffix, _ in self._suffixes()]
        for shapes, registered in zip(self._shapes, self._registered, strict=True):
            for name, shape in shapes.items():
                parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(registered[name], parameter)
        self.reset_parameters()

    # The equations, which a subclass states.

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one layer's parameters in one direction, by name."""
        raise TypeError(f"{type(self).__name__} must say the names and shapes of its parameters")

    def project(self, w: Weights, x: Tensor) -> Tensor:
        """Return U x + b for any leading dimensions, with both of torch's biases."""
        return project_sequence(x, w.weight_ih, w.bias_ih + w.bias_hh if self.bias else None)

    def cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the output (batch, step_size) and the next state of one step; u is project(w, x_t)."""
        raise TypeError(f"{type(self).__name__} must say the equations of one step")

    def observe_cell(self, w: Weights, u: Tensor, state: State) -> tuple[Tensor, State, Attention | None]:
        """Return `cell`'s result, and what it attended to; None without attention."""
        output, state = self.cell(w, u, state)
        return output, state, None

    def initial_cell_state(self, w: Weights, batch: int) -> State:
        """Return the state before the first step, tensors (batch, ...)."""
        zeros = [w.weight_hh.new_zeros(batch, size) for size in self.state_sizes]
        return zeros[0] if len(zeros) == 1 else tuple(zeros)

    def starts_from_zero(self) -> bool:
        """True if the state before the first step is zero, and the memory empty: a kernel need not be given it."""
        return self.unchanged_from(Layer, "initial_state", "initial_cell_state")

    def init_parameter(self, name: str, tensor: Tensor) -> None:
        """Draw one parameter anew, in place."""
        nn.init.uniform_(tensor, -1 / math.sqrt(self.hidden_size), 1 / math.sqrt(self.hidden_size))

    # The kernel that computes them faster.

    def kernel_spec(self) -> KernelSpec | None:
        """Return which fused kernel computes these equations; None if there is none."""
        return None

    def run_kernel(
        self, choice: KernelChoice, w: Weights, x: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """Return the outputs and the last state by the kernel of `kernel_spec`, as `run_eager` would.

        `state` is None for zeros and an empty memory, if `starts_from_zero`.
        """
        raise TypeError(f"{type(self).__name__} names a kernel and must say how to call it")

    def step_by_kernel(self, x: Tensor, state: State, inplace: bool) -> tuple[Tensor, State] | None:
        """Return `step`'s result by a kernel for one step; None if there is none, or it may not run."""
        return None

    def cudnn_cell(self) -> str | None:
        """Return the cell by which cuDNN knows these equations ("tanh", "relu", "lstm", "gru"); None if it does not."""
        return None

    def run_cudnn(
        self, dtype: torch.dtype, cell: str, w: Weights, x: Tensor, state: State | None
    ) -> tuple[Tensor, State]:
        """Return the outputs and the last state by cuDNN; states are those of a stack of one, (1, batch, ...)."""
        raise TypeError(f"{type(self).__name__} names a cell of cuDNN and must say how to call it")

    def kernel_inputs(
        self, w: Weights, x: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor | kernels.Projection, Tensor]:
        """Return what a kernel reads: U x + b and V; unprojected, (x, U, b) and V or [x, 1] and [V, U, b]."""
        if kernels.should_fuse_projection(x, w.weight_hh, lengths) and self.unchanged_from(Layer, "project"):
            if kernels.loop_may_project(x, w.weight_hh):
                return kernels.Projection(x, w.weight_ih, *self._biases(w)), w.weight_hh
            bias = w.bias_ih + w.bias_hh if self.bias else None
            return kernels.pack_projection(x, w.weight_ih, bias, w.weight_hh)
        return self.projection(w, x, lengths), w.weight_hh

    def projection(self, w: Weights, x: Tensor, lengths: Tensor | None) -> Tensor | kernels.Projection:
        """Return `project` of a sequence, or what a kernel's operator projects by itself."""
        if kernels.operator_may_project(x, lengths) and self.unchanged_from(Layer, "project"):
            return kernels.Projection(x, w.weight_ih, *self._biases(w))
        return self.project(w, x)

    def _biases(self, w: Weights) -> tuple[Tensor | None, Tensor | None]:
        """Return torch's two biases, ``bias_ih`` and ``bias_hh``; None without them."""
        return (w.bias_ih, w.bias_hh) if self.bias else (None, None)

    def unchanged_from(self, owner: type, *methods: str) -> bool:
        """True if these methods are still the owner's: no kernel may stand in for equations that a subclass changed."""
        for name in methods:  # noqa: SIM110  (the generator of all() takes longer than the comparisons)
            if getattr(type(self), name) is not getattr(owner, name):
                return False
        return True

    # Sizes and parameters.

    @property
    def output_size(self) -> int:
        return self.step_size * self.num_directions

    @property
    def step_size(self) -> int:
        """Features of one direction's output."""
        return self.state_sizes[0]

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Features of each of `state_names`."""
        return (self.hidden_size,) * len(self.state_names)

    @property
    def num_directions(self) -> int:
        """2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    def _suffixes(self) -> list[tuple[str, int]]:
        """Return the suffix and the input size of each layer and direction, in the order of the state's first axis."""
        directions = ("", "_reverse")[: self.num_directions]
        sizes = [self.input_size] + [self.output_size] * (self.num_layers - 1)
        return [(f"l{layer}{direction}", size) for layer, size in enumerate(sizes) for direction in directions]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for names in self._registered:
            for name, registered in names.items():
                self._reset_parameter(name, registered)

    def _reset_parameter(self, name: str, registered: str) -> None:
        tensor = getattr(self, registered)
        self.init_parameter(name, tensor)
        if parametrize.is_parametrized(self, registered):  # what was drawn is a copy
            setattr(self, registered, tensor)

    def weights(self, index: int) -> Weights:
        """Return the parameters of one layer and direction, read (if parametrized, computed) once for many steps."""
        plain = self._parameters  # nn.Module finds a parameter by name only after a search elsewhere
        found: dict[str, Any] = {}
        shapes = self._shapes[index]
        traced = torch.jit.is_tracing()  # to which sizes are tensors
        device = None
        for name, registered in self._registered[index].items():
            weight: Any = plain[registered] if registered in plain else getattr(self, registered)
            device = device or weight.device
            if not traced and (weight.shape != shapes[name] or weight.device != device):  # a kernel reads memory
                raise weight_error(self, registered, weight, shapes[name], device)
            found[name] = weight
        return Weights(**found)

    # The contract of a recurrence.

    def initial_state(self, batch: int) -> State:
        count = self.num_layers * self.num_directions
        like = None
        if self.starts_from_zero():  # zeros need no computed weights; a replica of nn.DataParallel has no parameters
            like = next((Weights(weight_hh=p) for p in self.parameters() if p.is_floating_point()), None)
        states = [self.initial_cell_state(like or self.weights(index), batch) for index in range(count)]
        return self.present_state(stack_layers(states))

    def step(self, x: Tensor, state: State, *, inplace: bool = False) -> tuple[Tensor, State]:
        """Return the output (batch, output_size) of one step's input x (batch, input_size), and the next state.

        The output may share its memory with the next state, as nn.LSTMCell's does. With ``inplace=True`` a memory of
        constant size may be overwritten instead of copied, where nothing is differentiated: `state` is then used up.
        """
        stepped = self.step_by_kernel(x, state, inplace)
        if stepped is not None:
            return stepped
        if self.steps_on_gpu(x):
            output, state = self.run_sequence(x.unsqueeze(0), state, None)
            return output.squeeze(0), state
        output, state, _ = self.observe(x, state)
        return output, state

    def steps_on_gpu(self, x: Tensor) -> bool:
        """True if one step by the fused kernel takes less time than by torch's operations on a GPU, a launch each."""
        on_gpu = isinstance(x, Tensor) and x.is_cuda and x.dim() == 2
        return on_gpu and not self.bidirectional and self.unchanged_from(Layer, "observe")

    def observe(self, x: Tensor, state: State) -> tuple[Tensor, State, tuple[Attention, ...] | None]:
        if self.bidirectional:
            raise MnemoscopeError(
                f"a bidirectional {self._get_name()} has no step: its output at t depends on later inputs; "
                "call it on the whole sequence, or examine a layer with bidirectional=False"
            )
        check_step_input(self, x)
        state = check_state(self, state, x, x.shape[0])
        after = []
        attended = []
        for layer, before in enumerate(unstack_layers(state, self.num_layers)):
            w = self.weights(layer)
            x, new, attention = self.observe_cell(w, self.project(w, x), before)
            x = self._drop_between_layers(x, layer)
            after.append(new)
            if attention is not None:
                attended.append(attention)
        return x, self.present_state(stack_layers(after)), tuple(attended) or None

    def _drop_between_layers(self, x: Tensor, layer: int) -> Tensor:
        return x if layer == self.num_layers - 1 else F.dropout(x, self.dropout, self.training)

    # Whole sequences, in every layout that nn.LSTM takes.

    def forward(self, input: Any, hx: State | None = None, *, starts: Any = None) -> tuple[Any, State]:
        """Run over a sequence, as nn.LSTM does.

        Args:
            input: (time, batch, input_size), (batch, time, input_size) with ``batch_first``, (time, input_size)
                unbatched, or a PackedSequence.
            hx: the state to start from; by default zeros, and an empty memory.
            starts: a mask of bool, (time, batch) in the layout of the input, that is True where a new sequence begins:
                the step there comes from the initial state, as if the pieces were run one by one. Of packed sequences,
                the mask of the padded ones. Not for both directions.

        Returns:
            The outputs in the layout of the input with ``output_size`` features, and the last state, every tensor of it
            (layers * directions, batch, ...), or (layers * directions, ...) for unbatched input.
        """
        if type(input) is not Tensor and is_fx_proxy(input):  # a leaf of torch.fx's graph, as torch's own layers are
            arguments = (input,) if hx is None else (input, hx)
            options = {} if starts is None else {"starts": starts}
            return input.tracer.create_proxy("call_module", input.tracer.path_of_module(self), arguments, options)
        return run_any_layout(self, input, hx, starts)

    def run_sequence(
        self, x: Tensor, state: State | None, lengths: Tensor | None, order: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return the outputs of x (time, batch, input_size), zero past the lengths (batch,), and the last state.

        `order` (batch,) says which sequence of the state each sequence of x is.
        """
        weights = [self.weights(index) for index in range(self.num_layers * self.num_directions)]
        states = self._first_states(state, weights, x, order)
        finals: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self.num_directions):
                index = len(finals)
                inputs = reverse_sequences(x, lengths) if direction else x
                output, final = run(self, weights[index], inputs, states[index], lengths)
                outputs.append(reverse_sequences(output, lengths) if direction else output)
                finals.append(final)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            x = self._drop_between_layers(x, layer)
        if not x.is_meta and kernels.in_autocast(x):  # which knows no meta device
            final = self.map_visible(in_autocast_dtype, stack_layers(finals))
            return in_autocast_dtype(x), self.present_state(final)
        return x, self.present_layers(finals)

    def _first_states(
        self, state: State | None, weights: list[Weights], x: Tensor, order: Tensor | None
    ) -> list[State | None]:
        """Return the state of each layer and direction before the first step of x; None if it is zero."""
        if state is not None:
            state = check_state(self, state, x, x.shape[1])
            if order is not None:
                state = map_state(lambda t: t[:, order], state)
            return unstack_layers(state, len(weights))
        if self.starts_from_zero():
            return [None] * len(weights)
        if self.unchanged_from(Layer, "initial_state"):  # the same, without computing parametrized weights again
            return [self.initial_cell_state(w, x.shape[1]) for w in weights]
        return unstack_layers(self.coerce_state(self.initial_state(x.shape[1])), len(weights))

    # Forms of a state.

    def coerce_state(self, state: State) -> State:
        """Return a caller's state in the form that the layer works with, or raise an error that names both."""
        tensors = (state,) if isinstance(state, Tensor) else state
        fits = isinstance(tensors, tuple | list) and len(tensors) == len(self.state_names)
        if not fits or not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise state_error(self, state)
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def present_state(self, state: State) -> State:
        """Return a state in the form in which callers get it: the inverse of `coerce_state`."""
        return state

    def present_layers(self, states: list[State]) -> State:
        """Return the states of all layers and directions as one, in the form in which callers get it."""
        return self.present_state(stack_layers(states))

    def map_visible(self, fn: Callable[[Tensor], Tensor], state: State) -> State:
        """Apply `fn` to h, or h and c, of a state in the form that the layer works with."""
        return map_state(fn, state)

    def keep_where_active(self, active: Tensor, new: State, old: State) -> State:
        """Return the new state in rows that are still running, `active` (batch,), and the old one in the others."""
        pairs = zip(leaves(new), leaves(old), strict=True)
        return rebuild(new, [where_active(active, after, before) for after, before in pairs])
