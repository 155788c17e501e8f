"""The operators whose compiled loop needs nothing beside their arguments and results: all but attention's."""

from __future__ import annotations

from mnemoscope.kernels._cpu.run import Loop
from mnemoscope.kernels._cpu.structures import STRUCTURES
from mnemoscope.kernels._operator import Operator, for_every_operator


def _implement(operator: Operator) -> None:
    loop = operator.name.removesuffix("_with_inputs")  # one loop serves both
    if loop in STRUCTURES and not loop.startswith("attentive_"):
        operator.implement("cpu")(Loop(operator))


for_every_operator(_implement)
