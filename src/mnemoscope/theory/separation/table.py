"""The tables of docs/separation.md: ranks found beside what conjecture 1 says.

python -m mnemoscope.theory.separation.table
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from mnemoscope.theory.separation._bounds import conjectured_rank, separation_ceiling
from mnemoscope.theory.separation._modular import PRIMES
from mnemoscope.theory.separation._rank import generic_rank

LENGTHS = (4, 6, 8, 10, 12, 16, 20)
FEW = [*product((1, 2, 3, 4, 5, 6), (2, 3, 4), (2, 3, 4))]  # L, R, M: the input takes M values
MANY = [*product((2, 3, 4, 5), (2, 3), (2, 3), (5, 8))]  # L, R, M and the number of values
FAR = [  # L, R, M, T and how many half sequences are drawn: conjecture 1 where its bound is large
    (3, 3, 3, 16, 1024),
    (3, 4, 4, 12, 2100),
    (4, 2, 2, 24, 1024),
    (4, 3, 3, 14, 2187),
    (5, 2, 2, 24, 1536),
]


@dataclass(frozen=True)
class Cell:
    """One circuit size: the rank found in almost every circuit, conjecture 1's bound, and the proved ceiling."""

    rank: int
    bound: int
    ceiling: int

    def __str__(self) -> str:
        """`64 ≥ 22`; bold where conjecture 1 fails; a dagger where the found rank is the ceiling, hence exact."""
        relation = "≥" if self.rank >= self.bound else "<"
        exact = "†" if self.rank == self.ceiling else ""
        text = f"{self.rank}{exact} {relation} {self.bound}"
        return text if self.rank >= self.bound else f"**{text}**"


def cell(depth: int, channels: int, inputs: int, length: int, values: int | None = None, limit: int = 1024) -> Cell:
    """Compare conjecture 1 with the rank of random circuits modulo two primes (one where the matrix is large)."""
    values = values or inputs
    primes = PRIMES[:2] if values ** (length // 2) <= 256 else PRIMES[:1]
    found = generic_rank(depth, channels, inputs, length, values=values, primes=primes, limit=limit)
    bound = conjectured_rank(depth, channels, inputs, length)
    return Cell(found.rank, bound, separation_ceiling(depth, channels, inputs, length, values))


def few_values(sizes: Iterable[tuple[int, int, int]], lengths: Sequence[int] = LENGTHS, limit: int = 1024) -> str:
    """A markdown table for inputs of exactly M values, one column a length; blank beyond `limit` half sequences."""
    rows = []
    for depth, channels, inputs in sizes:
        cells = [
            str(cell(depth, channels, inputs, length)) if inputs ** (length // 2) <= limit else "" for length in lengths
        ]
        rows.append([f"{depth}", f"{channels}", f"{inputs}", *cells])
    return _markdown(["L", "R", "M", *(f"T = {length}" for length in lengths)], rows)


def many_values(sizes: Iterable[tuple[int, int, int, int]], lengths: Sequence[int] = (4, 6, 8)) -> str:
    """A markdown table for inputs of more than M values, on a sample of half sequences where there are too many."""
    rows = [
        [*map(str, size), *(str(cell(*size[:3], length, values=size[3], limit=512)) for length in lengths)]
        for size in sizes
    ]
    return _markdown(["L", "R", "M", "values", *(f"T = {length}" for length in lengths)], rows)


def far(sizes: Iterable[tuple[int, int, int, int, int]]) -> str:
    """A markdown table of large cases on samples; a rank equal to the sample's size is only a lower bound."""
    rows = [[*map(str, size), str(cell(*size[:4], limit=size[4]))] for size in sizes]
    return _markdown(["L", "R", "M", "T", "half sequences", "found"], rows)


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    few = few_values(track(FEW, "M values", console=console))
    many = many_values(track(MANY, "more values", console=console))
    large = far(track(FAR, "large cases", console=console))
    print(few, many, large, sep="\n\n")


if __name__ == "__main__":
    main()
