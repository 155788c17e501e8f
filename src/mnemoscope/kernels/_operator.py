"""One fused recurrence as an operator of torch, declared once by a function that allocates its results.

    @operator
    def lstm_forward(xp: Tensor, V: Tensor, ..., save: bool) -> LstmRun:
        return LstmRun(h=xp.new_empty(...), ...)

From the signature come the operator's schema, the keyword call, and on the CPU the structure of its compiled loop. From
the body come the shapes that torch's tracers see and the tensors that a backend fills. A parameter may be a group, a
NamedTuple of several arguments: torch sees its fields one by one, everybody else the group.

torch's dispatcher takes longer over an operator of twenty arguments than a GPU over a short sequence. A call whose
tensors are ordinary ones, and of which no mode, transform, trace or profile wants to know, goes to its backend without
it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, get_type_hints

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels._dispatch import in_autocast
from mnemoscope.torch_internals import any_requires_grad, are_plain, below_autograd, dispatches_plainly

NAMESPACE = "mnemoscope"
OPERATORS: dict[str, Operator[Any, Any]] = {}
_listeners: list[Callable[[Operator[Any, Any]], None]] = []

_NOTHING = nullcontext()
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _fields(group: Any) -> tuple[str, ...] | None:
    """The fields of a NamedTuple type; None for any other annotation."""
    return getattr(group, "_fields", None)


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Inside, products are made in the precision of their factors: that of a run was chosen before it began."""
    return torch.autocast(tensor.device.type, enabled=False) if in_autocast(tensor) else _NOTHING


class Projection(NamedTuple):
    """U x + b_ih + b_hh of a whole sequence, made by the operator that reads it: autograd sees one function of both.

    x (T, B, E), U (Gn, E), b_ih (Gn) or None, b_hh (Gn) or of the first gates alone, or None; in the dtype in which the
    operator runs. It is only made where a layer `calls_plainly` (`_input_projection.py`).
    """

    x: Tensor
    U: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None

    def product(self) -> Tensor:
        """Return U x (T, B, Gn), contiguous, for a loop that adds the biases itself.

        On a GPU, torch asks cuBLAS how to multiply before every product with a bias. That takes longer than to launch
        the product.
        """
        return F.linear(self.x, self.U).contiguous()

    def project(self) -> Tensor:
        """Return xp (T, B, Gn), contiguous."""
        bias = self.b_ih
        if bias is not None and self.b_hh is not None:
            added = self.b_hh.shape[0]  # len() of a tensor is a function of Python
            some = added < bias.shape[0]
            bias = torch.cat([bias[:added] + self.b_hh, bias[added:]]) if some else bias + self.b_hh
        return F.linear(self.x, self.U, bias).contiguous()


class ProjectedRun(NamedTuple):
    """The results of an operator that projected its inputs, and what its backend gives beside them.

    Attributes:
        results: the operator's.
        h_T: (B, n) after the last step, in memory of its own; or None. A copy of h[-1] would be one more launch, and
            two more functions of autograd.
        kept: what the backend wants to be given again in the backward pass (`SavedRun.call`), or None.
    """

    results: Any
    h_T: Tensor | None = None
    kept: Tensor | None = None


class ProjectionGradients(NamedTuple):
    """The gradients of a `Projection`'s fields; None is not asked for."""

    dx: Tensor | None
    dU: Tensor | None
    db_ih: Tensor | None
    db_hh: Tensor | None


class Operator(Generic[Parameters, Result]):
    """An operator `mnemoscope::<name>`, called with its parameters by position or by keyword.

    Attributes:
        name: the name of the function that declares it.
        allocate: that function: from the arguments to the results, new tensors with nothing in them (zeros where a
            loop adds to them).
        parameters: the names of its parameters, groups among them.
        arguments: name and type of each argument, groups taken apart.
        argument_index: the position of each argument in the schema.
        results: the names of its results. One that is alone is called h.
        overload: what torch calls.
        backends: the function of each backend, by the device's type.
        with_projection: of a backward operator, by the device's type, what makes its results and the gradients of the
            projection in one loop, from that `Projection` and the operator's arguments; None if it cannot.
        differentiable: from the arguments in the schema's order to the outputs, with a graph; None without a derivative
            (`_autograd.py`).
        projecting: the same from the fields of a `Projection` and the arguments behind xp, without the results that
            only the backward pass reads; the last output is h_T, or None (`ProjectedRun`).
        pick_results: the results among those outputs, h_T left out, and a None behind them that stands for each result
            that is not there.
    """

    def __init__(self, allocate: Callable[Parameters, Result]) -> None:
        hints = get_type_hints(allocate)
        self.result = hints.pop("return")
        self.name = allocate.__name__
        self.__doc__ = allocate.__doc__
        self.allocate = allocate
        self.parameters = tuple(hints)
        self._groups = tuple(hint if _fields(hint) else None for hint in hints.values())
        self._has_groups = any(self._groups)
        self._layout: list[tuple[Any, int | slice]] = []  # where each parameter's arguments are in the schema's order
        self.arguments: dict[str, Any] = {}
        for name, hint in hints.items():
            start = len(self.arguments)
            if _fields(hint):
                self.arguments.update(get_type_hints(hint))
                self._layout.append((hint, slice(start, len(self.arguments))))
            else:
                self.arguments[name] = hint
                self._layout.append((None, start))
        self.argument_index = {name: index for index, name in enumerate(self.arguments)}
        tensors = [index for index, hint in enumerate(self.arguments.values()) if hint in (Tensor, Tensor | None)]
        self._pick_tensors = itemgetter(*tensors)  # every operator has several
        self._placed = next(index for index, hint in enumerate(self.arguments.values()) if hint is Tensor)
        self.backends: dict[str, Callable[..., Result]] = {}
        self.with_projection: dict[str, Callable[..., tuple[Any, ProjectionGradients] | None]] = {}
        self._projecting_backends: set[Callable[..., Result]] = set()
        self.differentiable: Callable[..., Any] | None = None
        self.projecting: Callable[..., Any] | None = None
        self.pick_results: Callable[[Sequence[Any]], tuple[Any, ...]] = tuple
        self._several = _fields(self.result) is not None
        self.results = _fields(self.result) or ("h",)
        self.qualified_name = f"{NAMESPACE}::{self.name}"
        torch.library.define(self.qualified_name, self._schema())
        torch.library.register_fake(self.qualified_name, self.taking_flat_arguments(allocate))
        self.overload = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        OPERATORS[self.name] = self
        for listener in _listeners:
            listener(self)

    def _schema(self) -> str:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        flat = [inspect.Parameter(name, kind, annotation=hint) for name, hint in self.arguments.items()]
        returned = tuple[(Tensor,) * len(self.results)] if self._several else Tensor  # type: ignore[misc]

        def prototype() -> None: ...

        prototype.__signature__ = inspect.Signature(flat, return_annotation=returned)  # type: ignore[attr-defined]
        return torch.library.infer_schema(prototype, mutates_args=())

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        flat = self.flatten(*args, **kwargs)
        with without_autocast(flat[self._placed]):
            return self._call(flat)

    def _call(self, flat: Sequence[Any]) -> Result:
        if torch.compiler.is_compiling() or not dispatches_plainly() or not self._runs_on_plain(flat):
            outputs = self.overload(*flat)
        elif self.differentiable is not None and torch.is_grad_enabled() and any_requires_grad(*flat):
            outputs = self.differentiable(*flat)
        else:
            with below_autograd():
                return self.run_backend(*flat)
        return self.result(*outputs) if self._several else outputs

    def of(self, xp: Tensor | Projection, *rest: Any) -> tuple[Result, Tensor | None]:
        """Call the operator with xp, its first argument, given or still to be projected.

        Returns its result, and the last state if a backend gives it (`ProjectedRun`). Of a projection, results that
        only the backward pass reads may be None.
        """
        call: Callable[..., Result] = self
        if not isinstance(xp, Projection):
            return call(xp, *rest), None
        flat = self.flatten(xp.x, *rest)
        if not self._runs_on_plain((*flat, *xp[1:])):
            return call(xp.project(), *rest), None
        if self.projecting is not None and torch.is_grad_enabled() and any_requires_grad(*xp, *flat):
            *outputs, h_T = self.projecting(*xp, *flat[1:])
            if not self._several:
                return outputs[0], h_T
            return tuple.__new__(self.result, self.pick_results((*outputs, None))), h_T
        with below_autograd():
            results, h_T, _ = self.project_and_run(xp, flat[1:])
        return results, h_T

    def run_backend(self, *flat: Any) -> Result:
        """Run the backend of the first tensor's device, with arguments in the schema's order."""
        backend = self.backends["cuda" if flat[self._placed].is_cuda else "cpu"]
        return backend(*self.unflatten(flat))

    def project_and_run(self, projection: Projection, rest: Sequence[Any]) -> ProjectedRun:
        """Run the backend with a projection in place of xp, and the arguments behind it."""
        backend = self.backends["cuda" if projection.x.is_cuda else "cpu"]
        xp = projection if backend in self._projecting_backends else projection.project()
        found = backend(*self.unflatten((xp, *rest)))
        return found if isinstance(found, ProjectedRun) else ProjectedRun(found)

    def _runs_on_plain(self, flat: Sequence[Any]) -> bool:
        """True if there is a backend for these tensors, and nothing about them that torch's dispatcher must see to.

        Behind the arguments in `flat` come the other tensors of a projection.
        """
        first = flat[self._placed]
        on_cuda = first.is_cuda
        if ("cuda" if on_cuda else "cpu") not in self.backends or not (on_cuda or first.is_cpu):
            return False
        tensors = (*self._pick_tensors(flat), *flat[len(self.arguments) :])
        return are_plain(tensors, on_cuda)

    def flatten(self, *args: Any, **kwargs: Any) -> Sequence[Any]:
        """The arguments in the schema's order, groups taken apart."""
        if kwargs:
            rest = self.parameters[len(args) :]
            if kwargs.keys() != set(rest):
                wrong = ", ".join(sorted(kwargs.keys() ^ set(rest)))
                raise TypeError(f"{self.name}: missing or unknown arguments {wrong}")
            args = (*args, *[kwargs[name] for name in rest])
        if not self._has_groups:
            return args
        flat: list[Any] = []
        for group, value in zip(self._groups, args, strict=True):
            if group is None:
                flat.append(value)
            else:
                flat.extend(value)
        return flat

    def unflatten(self, flat: Sequence[Any]) -> Sequence[Any]:
        """The arguments by parameter: the inverse of `flatten`."""
        if not self._has_groups:
            return flat
        new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
        return [flat[where] if group is None else new(group, flat[where]) for group, where in self._layout]

    def taking_flat_arguments(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the parameters as one of the arguments in the schema's order, which is how torch calls it."""
        if not self._has_groups:
            return function
        return lambda *flat: function(*self.unflatten(flat))

    def implement(
        self, device: str, *, projects: bool = False
    ) -> Callable[[Callable[..., Result | ProjectedRun]], Callable[..., Any]]:
        """Register a backend's function, of this operator's parameters: `@lstm_forward.implement("cpu")`.

        One that `projects` also takes a `Projection` in place of xp. It may then return a `ProjectedRun`.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            torch.library.impl(self.qualified_name, device, self.taking_flat_arguments(function))
            self.backends[device] = function
            if projects:
                self._projecting_backends.add(function)
            return function

        return register


operator = Operator


def for_every_operator(function: Callable[[Operator[Any, Any]], None]) -> None:
    """Call a function with every operator, those that are declared later included."""
    for declared in OPERATORS.values():
        function(declared)
    _listeners.append(function)


class CudaCell(NamedTuple):
    """The struct of csrc/cuda/cells.cuh that runs a family on CUDA."""

    struct: str
    rows: int
    """Rows of V, and inputs, per unit."""
    forward: Operator[Any, Any]
    backward: Operator[Any, Any]
    names: Mapping[str, str]
    """The kernels' names of arguments and results to which the operators give other names."""
    phi: str
    """The nonlinearity, unless the operators have an argument for it."""


CUDA_CELLS: dict[str, CudaCell] = {}


def register_cuda_cell(
    forward: Operator[Any, Any],
    backward: Operator[Any, Any],
    struct: str,
    *,
    rows: int,
    phi: str = "tanh",
    **names: str,
) -> None:
    """Have a pair of operators run on CUDA by a cell.

    Args:
        forward: the operator. Its arguments and results have the names of those of `_cuda/cells.py`.
        backward: the operator of its gradients, with names from there as well.
        struct: the cell's name in csrc/cuda/cells.cuh.
        rows: of V, and inputs, per unit.
        phi: the nonlinearity that the cell is compiled with, unless the operators have an argument for it.
        **names: where an operator has another name, the kernels' name for it: `gates="saved"`.
    """
    CUDA_CELLS[forward.name.removesuffix("_forward")] = CudaCell(struct, rows, forward, backward, names, phi)
