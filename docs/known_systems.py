"""Write docs/known-systems.md: what the scopes measure on systems whose answers are known.

python docs/known_systems.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

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

An instrument is calibrated on what is known. Each system below is an ordinary recurrence with inputs of its own
(`mnemoscope.systems`); `known` is the true value from the source in the last column, `measured` what a scope found.
`allowed` is how far a correct measurement may lie from the truth on sequences of this length. The page is written by
`docs/known_systems.py`, and the tests measure it again.

```
mnemoscope list                                     # their names and options
mnemoscope examine system:chaotic-lstm --with s=1   # look at one through every scope
```

| system | figure | known | measured | allowed | source |
|---|---|---|---|---|---|
"""


class Measured(NamedTuple):
    """A known figure and what was measured."""

    system: str
    known: Known
    value: float

    def row(self) -> str:
        """One row of the page's table."""
        answer = self.known
        figure = f"{answer.scope}.{answer.figure}"
        source = answer.source.replace("|", "\\|")
        numbers = f"{answer.value:.6g} | {self.value:.6g} | {answer.tolerance:.2g}"
        return f"| `{self.system}` | `{figure}` | {numbers} | {source} |"


def title(name: str, options: dict[str, Any]) -> str:
    """Return a system as the command line has it: system:henon --with a=1.2."""
    words = " ".join(f"{option}={value}" for option, value in options.items())
    return f"system:{name}{f' --with {words}' if words else ''}"


def measured(name: str, options: dict[str, Any]) -> Iterator[Measured]:
    """Measure every known figure of a system; scopes that give several of them run once."""
    system = SYSTEMS[name](**options)
    found: dict[Any, Any] = {}
    for answer in system.known():
        key = (answer.scope, tuple(answer.options.items()))
        if key not in found:
            found[key] = SCOPES[answer.scope].measure(system, system.inputs(), **answer.options)
        yield Measured(title(name, options), answer, found[key].figures[answer.figure])


def main() -> None:
    torch.set_num_threads(1)
    lines = [figure.row() for name, options, _ in CASES for figure in measured(name, options)]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
