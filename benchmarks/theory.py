"""How long an exact Start-End rank takes: ``python benchmarks/theory.py``.

One circuit per line: first its whole grid tensor is evaluated modulo a 31-bit prime, then the rank of the matrix.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.table import Table

from mnemoscope.theory.separation import PRIMES, exact_rank, grid_matrix, random_circuit

# depth L, channels R, length T
CASES = [(2, 2, 12), (2, 3, 12), (2, 4, 12), (3, 4, 12), (1, 4, 20), (2, 2, 20), (2, 3, 20), (2, 4, 20), (4, 4, 20)]


def timings() -> Iterator[tuple[str, ...]]:
    exact_rank(np.eye(2, dtype=np.int64))  # the first call imports flint
    for depth, channels, length in CASES:
        circuit = random_circuit(depth, channels, 2, np.random.default_rng(0), PRIMES[0])
        start = time.perf_counter()
        matrix = grid_matrix(circuit, length)
        grid_seconds = time.perf_counter() - start
        start = time.perf_counter()
        rank = exact_rank(matrix)
        rank_seconds = time.perf_counter() - start
        sizes = (str(depth), str(channels), "2", str(length), f"{len(matrix)} x {len(matrix)}")
        yield (*sizes, str(rank), f"{grid_seconds:.3f}", f"{rank_seconds:.3f}")


def main() -> None:
    table = Table("L", "R", "M", "T", "matrix", "rank", "grid, s", "rank, s")
    for row in timings():
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
