"""One operator by its compiled loop: results allocated, the structure's fields filled by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from mnemoscope.kernels._cpu.library import call
from mnemoscope.kernels._cpu.structures import STRUCTURES
from mnemoscope.kernels._operator import Operator

_SIZES = ("steps", "batch", "n", "n_inputs", "carried", "activation_width")
_STATES = ("h", "cells", "dxp")  # the first of these that an operator has is (T, B, n)


class Loop:
    """The compiled loop of an operator, called with the operator's arguments.

    Which argument or result fills which field is found here once, by name; a call only follows it.

    Args:
        operator: the operator.
        scratch: tensors that the loop takes beside its arguments and results. A call gives them by name.
    """

    def __init__(self, operator: Operator, scratch: Sequence[str] = ()) -> None:
        self.operator = operator
        self._scratch = dict.fromkeys(scratch).keys()
        self.name = operator.name.removesuffix("_with_inputs")  # one loop serves both
        self._single = len(operator.results) == 1
        available = ["absent", *_SIZES, *operator.arguments, *operator.results, *scratch]
        unknown = self._scratch - STRUCTURES[self.name].names
        if unknown:
            raise TypeError(f"{self.name} has no field {', '.join(sorted(unknown))}")
        # What only the loop's other operator has is absent: a null pointer.
        sources = [available.index(f) if f in available else 0 for f in STRUCTURES[self.name].order]
        self._in_order = itemgetter(*sources)
        self._states = next(available.index(name) for name in _STATES if name in available)
        self._V, self._values0, self._activations, self._U = (
            available.index(name) if name in available else None for name in ("V", "values0", "activations", "U")
        )
        self._bias = next((available.index(name) for name in ("b_ih", "db_ih") if name in available), 0)

    def __call__(self, *arguments: Any, **scratch: Any) -> Any:
        if scratch.keys() != self._scratch:
            wrong = ", ".join(sorted(scratch.keys() ^ self._scratch))
            raise TypeError(f"{self.operator.name}: missing or unknown fields {wrong}")
        while True:
            results = self.operator.allocate(*arguments)
            if self._fill(results, arguments, scratch):
                return results

    def _fill(self, results: Any, arguments: Sequence[Any], scratch: Mapping[str, Any]) -> bool:
        """Run the loop, and return whether it came to its end (`library.call`)."""
        values = [None, 0, 0, 0, 0, 0, 0, *self.operator.flatten(*arguments)]
        if self._single:
            values.append(results)
        else:
            values.extend(results)
        values.extend([scratch[name] for name in self._scratch])

        # The sizes, in the order of _SIZES.
        states = values[self._states]
        _, _, n = values[1:4] = states.shape
        if self._V is not None:
            values[4] = values[self._V].shape[1] - n
        if self._U is not None and values[self._U] is not None:
            values[4] = values[self._U].shape[1] + (values[self._bias] is not None)
        if self._values0 is not None:
            carried = values[self._values0]
            values[5] = carried.shape[1] if carried.dim() > 1 else 0  # (0,): nothing is carried in
        if self._activations is not None:
            values[6] = values[self._activations].shape[2]
        return call(self.name, states.dtype, self._in_order(values))
