"""How torch differentiates a fused operator: what its forward pass saves, and the derivative that reads it.

`_derivatives.py` has the derivatives themselves. When the gradient must itself be differentiable
(`create_graph=True`), it is taken through the loops of `_naive.py` instead.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from itertools import compress
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from mnemoscope.kernels._operator import NAMESPACE, Operator, Projection, ProjectionGradients, without_autocast
from mnemoscope.kernels._weight_gradients import (
    WeightGradients,
    projection_gradients,
    weight_gradient,
    weight_gradient_backends,
)
from mnemoscope.torch_internals import (
    any_requires_grad,
    apply_function,
    are_of_plain_types,
    are_plain,
    below_autograd,
    dispatches_plainly,
)

Gradients = tuple[Tensor | None, ...]

_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # what it registers lasts as long as it does


class SavedRun:
    """What the forward pass of an operator left for its backward pass.

    Attributes:
        derivative: that of the forward operator.
        arguments: the operator's arguments, by parameter.
        results: the operator's results, as far as they were saved.
        device: the backend that `call` goes to without torch's dispatcher; None if the dispatcher must choose it.
        kept: what that backend kept in the forward pass (`ProjectedRun`).
        projection: that of the inputs, if the operator made it and the gradients of all its weights are asked for.
        needs_dx: whether the gradient of its inputs is asked for.
        made: the gradients of weights that were made together, if they were.
        projected: the gradients of the projection, if a loop made them.
    """

    def __init__(
        self,
        derivative: Derivative,
        saved: Sequence[Any],
        needs_input_grad: Sequence[bool],
        device: str | None = None,
        kept: Tensor | None = None,
        projection: Projection | None = None,
        needs_dx: bool = False,
    ) -> None:
        self.derivative = derivative
        self.device = device
        self.kept = kept
        self.projection = projection
        self.needs_dx = needs_dx
        self.made: WeightGradients | None = None
        self.projected: ProjectionGradients | None = None
        self._needs_input_grad = needs_input_grad
        self._flat = derivative.pick_arguments(saved)
        new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
        self.arguments = new(derivative.Arguments, derivative.operator.unflatten(self._flat))
        self.results = new(derivative.Results, saved[len(self._flat) :])

    def call(self, operator: Operator, *arguments: Any) -> Any:
        """Call a backward operator with its parameters; its backend also gets what it kept in the forward pass."""
        backend = None if self.device is None else operator.backends.get(self.device)
        if backend is None:
            return operator(*arguments)
        return backend(*arguments) if self.kept is None else backend(*arguments, kept=self.kept)

    def call_with_projection(self, operator: Operator, arguments: Callable[[Tensor], Sequence[Any]]) -> Any | None:
        """Return the results of a backward operator whose loop also makes `projected`; None if no loop does.

        `arguments` gives those of the operator but the last, `needs_dx`, from x (T, B, E), contiguous.
        """
        loop = None if self.device is None else operator.with_projection.get(self.device)
        if loop is None or self.projection is None:
            return None
        x = self.projection.x.contiguous()
        made = loop(self.projection, *arguments(x), self.needs_dx)
        if made is None:
            return None
        found, self.projected = made
        return found

    def all_at_once(
        self,
        dz: Tensor,
        first: Tensor,
        states: Tensor,
        du: Tensor | None = None,
        du_row: int | None = None,
        dk: Tensor | None = None,
        h: Tensor | None = None,
        dv_rows: Tensor | None = None,
    ) -> Tensor | None:
        """Return what V gets from the gradients dz (T, B, G) of its products, if its backend makes all in one launch.

        Those of the projection are then in `made`. V reads `first` (B, n), or zeros if that is without elements, and
        the states (T, B, n) but the last. Where the gradients of its products are not dz, they are the first du_row
        columns of dz, and then du. dk and h (T, B, n) are the gradients of attention's keys and what these are made of,
        dv_rows (B, n) those of v by sequence.
        """
        make = None if self.device is None else weight_gradient_backends.get(self.device)
        if make is None or self.projection is None:
            return None
        row = dz.shape[2] if du_row is None else du_row
        self.made = make(self.projection, dz, first, states, du, row, dk, h, dv_rows)
        return None if self.made is None else self.made.dV

    def weight_gradient(self, dz: Tensor, first: Tensor, states: Tensor) -> Tensor:
        """Return sum_t dz_t^T state_{t-1} (`weight_gradient`), by one launch with those of the projection if it can."""
        dV = self.all_at_once(dz, first, states)
        return weight_gradient(dz, first, states) if dV is None else dV

    def needs(self, argument: str) -> bool:
        """True if the gradient of this argument, of a group or not, is asked for."""
        return self._needs_input_grad[self.derivative.operator.argument_index[argument]]

    def gradients(self, **found: Tensor | None) -> Gradients:
        """Return the gradients by name in the schema's order; an argument that is not named has none."""
        return self.derivative.Gradients(**found)

    def gradients_of_naive(
        self, loop: Callable[..., Sequence[Tensor]], grads: Sequence[Tensor | None], **extra: Tensor
    ) -> Gradients:
        """Return the gradients of a naive loop in the schema's order, with a graph of their own.

        The loop runs on views: an argument may depend on another one through its history (a carried state on the
        weights), and that path belongs to the caller, not to this operator.
        """
        views = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in self._flat]
        arguments = self.derivative.Arguments(*self.derivative.operator.unflatten(views))._asdict()
        arguments.pop("save", None)
        outputs = loop(**arguments, **extra)
        pairs = [(y, g) for y, g in zip(outputs, grads, strict=True) if g is not None and y.requires_grad]
        wanted = [x for x in views if isinstance(x, Tensor) and x.requires_grad]
        found = iter(
            torch.autograd.grad(
                [y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True
            )
        )
        return tuple(next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in views)


def _named_tuple(name: str, fields: Sequence[str]) -> Any:
    """Return a named tuple type whose fields are None unless given."""
    return namedtuple(name, fields, defaults=(None,) * len(fields))


class Derivative:
    """The derivative of an operator, registered with torch when it is made.

    That is torch.library.register_autograd, less its search for default values, of which there are none: it asks for
    the operator's arguments twice an argument, 0.2 ms a call for attention's.

    Args:
        operator: the forward operator.
        backward: from the `SavedRun` and the gradients of the differentiable results to those of the arguments.
        saves: the results that it reads, beside all arguments.
        differentiable: the first results.
        also: those of the others that are not for the backward pass alone.
    """

    def __init__(
        self,
        operator: Operator,
        backward: Callable[..., Gradients],
        saves: Sequence[str],
        differentiable: Sequence[str],
        also: Sequence[str] = (),
    ) -> None:
        self.operator = operator
        self.backward = backward
        self._count = len(differentiable)
        returned = (*differentiable, *also)
        assert operator.results[: self._count] == tuple(differentiable)
        self._also = [operator.results.index(name) for name in also]
        self._saved_indices = [operator.results.index(name) for name in saves]

        # Arguments are saved as constants, then tensors: where each of them is then.
        self._is_tensor = [hint in (Tensor, Tensor | None) for hint in operator.arguments.values()]
        self._is_constant = [not tensor for tensor in self._is_tensor]
        order = list(compress(operator.arguments, self._is_constant)) + list(
            compress(operator.arguments, self._is_tensor)
        )
        self.pick_arguments = itemgetter(*[order.index(name) for name in operator.arguments])

        self.Arguments = _named_tuple("Arguments", operator.parameters)
        self.Results = _named_tuple("Results", saves)
        self.Gradients = _named_tuple("Gradients", tuple(operator.arguments))
        operator.differentiable = apply_function(self._function(operator.run_backend))
        operator.projecting = apply_function(self._projecting_function())
        if len(operator.results) > 1:
            places = [returned.index(name) if name in returned else len(returned) for name in operator.results]
            operator.pick_results = itemgetter(*places)
        _library.impl(operator.name, self._above_autograd(), "Autograd")

    def save(self, ctx: Any, inputs: tuple[Any, ...], outputs: Any, *more: Tensor | None) -> None:
        """Save what the backward pass reads; and, of a projection, its fields in place of xp and what is kept."""
        several = len(self.operator.results) > 1
        results = outputs if several else (outputs,)
        ctx.constants = tuple(compress(inputs, self._is_constant))
        tensors = tuple(compress(inputs, self._is_tensor))
        if more:
            tensors = (*more, *tensors[1:])
        ctx.save_for_backward(*tensors, *[results[i] for i in self._saved_indices])
        others = [results[i] for i in self._also] if more else results[self._count :]  # of those that are returned
        if others:
            ctx.mark_non_differentiable(*others)
        if several or more:
            ctx.set_materialize_grads(False)

    def _above_autograd(self) -> Callable[..., Any]:
        """Return the operator as torch calls it above autograd; without gradients it costs no autograd function."""
        overload = self.operator.overload
        apply = self._function(overload).apply

        def run(*inputs: Any) -> Any:
            if torch.is_grad_enabled() and any_requires_grad(*inputs):
                return apply(*inputs)
            with below_autograd():
                return overload(*inputs)

        return run

    def _function(self, compute: Callable[..., Any]) -> type[torch.autograd.Function]:
        """Return the function of autograd whose outputs `compute` makes, from the arguments in the schema's order."""

        def forward(ctx: Any, *inputs: Any) -> Any:
            with below_autograd():
                outputs = compute(*inputs)
            self.save(ctx, inputs, outputs)
            return outputs

        def backward(ctx: Any, *grads: Any) -> Any:
            saved = (*ctx.constants, *ctx.saved_tensors)  # asked for once: a checkpoint gives them once
            run = SavedRun(self, saved, ctx.needs_input_grad)
            with without_autocast(run.results[0]):  # which would round the products that give the weights' gradients
                return self.backward(run, *grads[: self._count])

        return self._make_function(forward, backward)

    def _projecting_function(self) -> type[torch.autograd.Function]:
        """Return the function of autograd that projects the inputs, too: of a `Projection` and what is behind xp."""
        fields = len(Projection._fields)
        behind = fields + 1  # where the operator's own arguments begin among the saved tensors

        def forward(ctx: Any, *inputs: Any) -> Any:
            projection = Projection(*inputs[:fields])
            rest = inputs[fields:]
            with below_autograd():
                results, h_T, kept = self.operator.project_and_run(projection, rest)
            self.save(ctx, (None, *rest), results, *projection, kept)
            # An output costs the host more than a tensor that is only saved.
            if len(self.operator.results) == 1:
                return results, h_T
            return (*results[: self._count], *[results[i] for i in self._also], h_T)

        def backward(ctx: Any, *grads: Any) -> Any:
            tensors = ctx.saved_tensors
            on_cuda = tensors[0].is_cuda
            with without_autocast(tensors[0]):
                if not _calls_plainly(tensors, grads, on_cuda):
                    return differentiate(ctx, tensors, grads, None)
                with below_autograd():
                    return differentiate(ctx, tensors, grads, "cuda" if on_cuda else "cpu")

        def differentiate(ctx: Any, tensors: Sequence[Any], grads: Sequence[Any], device: str | None) -> Any:
            projection = Projection(*tensors[:fields])
            dh, *others, dh_T = *grads[: self._count], grads[-1]
            if dh_T is not None:
                dh = _add_to_last_step(dh, dh_T, projection.x.shape[0])
            xp = projection.project() if torch.is_grad_enabled() else None  # a first derivative does without it
            needs = ctx.needs_input_grad
            saved = (*ctx.constants, xp, *tensors[behind:])
            wanted = None if device is None else _if_all_wanted(projection, needs)
            run = SavedRun(self, saved, (True, *needs[fields:]), device, tensors[fields], wanted, needs[0])
            dxp, *rest = self.backward(run, dh, *others)
            if run.projected is not None:
                return (*run.projected, *rest)
            return (*projection_gradients(projection, dxp, needs, run.made), *rest)

        return self._make_function(forward, backward)

    def _make_function(self, forward: Callable, backward: Callable) -> type[torch.autograd.Function]:
        # Made by its name, which is the node's in a graph and in a profile.
        name = self.operator.name.removesuffix("_forward").capitalize()
        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(name, (torch.autograd.Function,), methods)


def register_derivative(
    operator: Operator,
    backward: Callable[..., Gradients],
    saves: Sequence[str],
    differentiable: Sequence[str],
    also: Sequence[str] = (),
) -> None:
    """Give an operator its derivative; see `Derivative`."""
    Derivative(operator, backward, saves, differentiable, also)


def _calls_plainly(saved: Sequence[Tensor | None], grads: Sequence[Tensor | None], on_cuda: bool) -> bool:
    """True if a backward pass may go to its backend without torch's dispatcher (`Operator`), as its forward pass did.

    What was saved then may have come back through a hook, but as a tensor of the same kind of numbers and device.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not are_of_plain_types(saved):
        return False
    return are_plain(grads, on_cuda) and dispatches_plainly()


def _add_to_last_step(dh: Tensor | None, dh_T: Tensor, steps: int) -> Tensor:
    """Return the gradient of h (T, B, n) with that of h_T (B, n) = h[-1]; None is zero."""
    if dh is None:
        return torch.cat([dh_T.new_zeros(steps - 1, *dh_T.shape), dh_T.unsqueeze(0)])
    return torch.cat([dh[:-1], (dh[-1] + dh_T).unsqueeze(0)])


def _if_all_wanted(projection: Projection, needs: Sequence[bool]) -> Projection | None:
    """Return a projection if the gradients of U and of the biases that it has are asked for, else None."""
    _, _, b_ih, b_hh = projection
    wanted = needs[1] and (b_ih is None or needs[2]) and (b_hh is None or needs[3])
    return projection if wanted else None
