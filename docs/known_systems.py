"""Write docs/known-systems.md: what the scopes measure on systems whose answers are known.

python docs/known_systems.py
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mnemoscope.recurrence import State, map_state
from mnemoscope.scopes import SCOPES
from mnemoscope.systems import SYSTEMS, Known

PAGE = Path(__file__).with_name("known-systems.md")

# (name, options, slow): slow ones take over a second and are measured again only in slow tests.
CASES: list[tuple[str, dict[str, Any], bool]] = [
    ("chaotic-lstm", {"s": 0.5}, True),
    ("chaotic-lstm", {"s": 1.0}, True),
    ("henon", {}, True),
    ("logistic", {"r": 2.5}, True),
    ("logistic", {"r": 3.2}, True),
    ("logistic", {"r": 4.0}, True),
    ("cat-map", {}, False),
    ("lorenz", {}, True),
    ("delay-line", {"delay": 10}, False),
    ("leaky-sum", {"decay": 0.95}, False),
    ("leaky-sum", {"decay": 0.95, "present": 5.0}, False),
    ("leaky-sum", {"decay": 0.5}, False),
    ("random-tanh", {"gain": 0.9}, True),
    ("circuit", {}, False),
    ("circuit", {"values": 2, "channels": 20}, False),
]

HEAD = """# Systems whose answers are known

The scopes are tested on systems whose answers are known. Each one is an ordinary recurrence with inputs of its own
(`mnemoscope.systems`); `known` is the true value from the source in the last column, `measured` what a scope found.
`allowed` is how far a correct measurement may lie from the truth on sequences of this length; where the scope states a
standard error, the truth must also lie within three of them. `worst` is the largest error over five seeds: of the
scope, of the inputs, of random weights, and of a start that is moved a little. The page is written by
`docs/known_systems.py`; the tests measure it again, with five seeds in `pytest -m slow tests/systems`.

```
mnemoscope list                                     # their names and options
mnemoscope examine system:chaotic-lstm --with s=1   # look at one through every scope
```

| system | figure | known | measured | worst | allowed | source |
|---|---|---|---|---|---|---|
"""


SEEDS = range(5)
MOVE = 0.02  # standard deviation of what a seed adds to the start of a map


class Measured(NamedTuple):
    """A known figure and what was measured, with the standard error that the scope states for it (NaN for none)."""

    system: str
    known: Known
    value: float
    standard_error: float

    @property
    def figure(self) -> str:
        return f"{self.known.scope}.{self.known.figure}"

    @property
    def error(self) -> float:
        return 0.0 if self.value == self.known.value else abs(self.value - self.known.value)

    @property
    def holds(self) -> bool:
        return self.known.holds(self.value, self.standard_error)

    def row(self, worst: float) -> str:
        """One row of the page's table."""
        answer = self.known
        source = answer.source.replace("|", "\\|")
        numbers = f"{answer.value:.6g} | {self.value:.6g} | {worst:.1g} | {answer.tolerance:.2g}"
        return f"| `{self.system}` | `{self.figure}` | {numbers} | {source} |"


def title(name: str, options: dict[str, Any]) -> str:
    """Return a system as the command line has it: system:henon --with a=1.2."""
    words = " ".join(f"{option}={value}" for option, value in options.items())
    return f"system:{name}{f' --with {words}' if words else ''}"


def varied(name: str, options: dict[str, Any], seed: int) -> Any:
    """Return a system whose random weights, if it has any, or else whose start depend on the seed; 0 is its own."""
    factory: Any = SYSTEMS[name]
    if "seed" in inspect.signature(factory).parameters:
        return factory(**options, seed=seed)
    system = factory(**options)
    begin = system.initial_state

    def initial_state(self: Any, batch: int) -> State:
        generator = torch.Generator().manual_seed(seed)

        def move(state: torch.Tensor) -> torch.Tensor:
            noise = torch.randn(state[:, :1].shape, generator=generator, dtype=state.dtype)
            return state + MOVE * noise

        return map_state(move, begin(batch))

    if seed and name not in ("delay-line", "leaky-sum"):  # whose inputs differ
        system.initial_state = types.MethodType(initial_state, system)
    return system


def measured(name: str, options: dict[str, Any], seed: int = 0) -> Iterator[Measured]:
    """Measure every known figure of a system; scopes that give several of them run once."""
    system = varied(name, options, seed)
    found: dict[Any, Any] = {}
    for answer in system.known():
        key = (answer.scope, tuple(answer.options.items()))
        if key not in found:
            found[key] = SCOPES[answer.scope].measure(system, system.inputs(seed=seed), seed=seed, **answer.options)
        figures = found[key].figures
        stated = figures["standard_error"] if answer.figure in ("largest", "change") else math.nan
        yield Measured(title(name, options), answer, figures[answer.figure], stated)


def main() -> None:
    torch.set_num_threads(1)
    lines = []
    for name, options, _ in CASES:
        first: dict[str, Measured] = {}
        worst: dict[str, float] = {}
        for seed in SEEDS:
            for each in measured(name, options, seed):
                if not each.holds:
                    print(f"seed {seed}: {each}")
                first.setdefault(each.figure, each)
                worst[each.figure] = max(worst.get(each.figure, 0.0), each.error)
        lines += [each.row(worst[figure]) for figure, each in first.items()]
        print(*lines[-len(first) :], sep="\n", flush=True)
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
