"""The operators whose compiled loop needs nothing beside their arguments and results: all but attention's."""

from __future__ import annotations

from mnemoscope.kernels._cpu import projecting
from mnemoscope.kernels._cpu.run import Loop
from mnemoscope.kernels._cpu.structures import STRUCTURES
from mnemoscope.kernels._operator import Operator, for_every_operator


def _implement(operator: Operator) -> None:
    loop = operator.name.removesuffix("_with_inputs")  # one loop serves both
    if loop not in STRUCTURES or loop.startswith("attentive_"):
        return
    if "U" not in STRUCTURES[loop].names:
        operator.implement("cpu")(Loop(operator))
    elif loop.endswith("_forward"):
        projecting.implement_forward(operator)
    else:
        projecting.implement_backward(operator)


for_every_operator(_implement)
