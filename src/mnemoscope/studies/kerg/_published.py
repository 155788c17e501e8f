"""Tables 6 to 9 as data: the settings that the paper prints, and what the authors' code adds to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mnemoscope.training import FitConfig, NetworkConfig

Optimizer = Literal["adam", "rmsprop"]

N = 128
"""Units on Copy and Denoise (code)."""
PAPER_BATCH = 10
PAPER_UPDATES = 200_000
"""Updates of 10 sequences each (code); the paper says neither."""
BATCH = 64
BUDGET = PAPER_UPDATES * PAPER_BATCH // BATCH
"""Updates of 64 sequences that see as many of them. On a GPU 64 at once take as long as 10."""


@dataclass(frozen=True)
class Printed:
    """One row of Tables 6 to 9, by our name of the model; None where the paper leaves a cell blank.

    `lr` of expRNN's skew matrix is a tenth of the other weights', which is what `ExpRNN` does.
    """

    model: str
    lr: float | None
    optimizer: Optimizer | None
    nonlinearity: str | None = None
    buffer: int | None = None
    relevant: int | None = None

    def options(self, **others: Any) -> dict[str, Any]:
        """Return the layer's options: the printed ones, and Hénaff's V (code), which other layers have by default."""
        printed = {"nonlinearity": self.nonlinearity, "buffer": self.buffer, "relevant": self.relevant}
        found: dict[str, Any] = {name: value for name, value in printed.items() if value is not None}
        if self.model == "RelRNN":
            found["recurrent_init"] = "henaff"
        return {**found, **others}

    def network(self, hidden_size: int = N, **options: Any) -> NetworkConfig:
        """Return the network, with the read-out of the code: Xavier's, without a gain."""
        return NetworkConfig(self.model, hidden_size, options=self.options(**options))

    def fit(self, **others: Any) -> FitConfig:
        """Return how it is trained: the printed optimizer and rate, the gradient clipped at norm 1 (code)."""
        assert self.lr is not None
        return FitConfig(optimizer=self.optimizer or "adam", lr=self.lr, **others)


TableName = Literal["6", "7", "8", "9"]
TABLES: dict[TableName, tuple[Printed, ...]] = {
    "6": (
        Printed("OrthRNN", 2e-4, "rmsprop", "modrelu"),
        Printed("ExpRNN", 2e-4, "rmsprop", "modrelu"),
        Printed("LSTM", 2e-4, "adam"),
        Printed("RelRNN", 2e-4, "adam", "tanh", 10, 10),
    ),
    "7": (
        Printed("OrthRNN", 2e-4, "rmsprop", "modrelu"),
        Printed("ExpRNN", 2e-4, "rmsprop", "modrelu"),
        Printed("LSTM", 2e-4, "adam"),
        Printed("GORU", 1e-3, "rmsprop"),
        Printed("RelRNN", 2e-4, "rmsprop", "modrelu", 10, 10),
    ),
    "8": (
        Printed("OrthRNN", 1e-4, "adam", "modrelu"),
        Printed("ExpRNN", 1e-4, "adam", "modrelu"),
        Printed("LSTM", 2e-4, None),
        Printed("GORU", None, None),
        Printed("RelRNN", 3e-4, "adam", "modrelu", 10, 10),
    ),
    "9": (
        Printed("OrthRNN", 1e-3, "adam", "tanh"),
        Printed("ExpRNN", 3e-3, "adam", "tanh"),
        Printed("LSTM", 2e-4, None),
        Printed("GORU", None, None),
        Printed("RelRNN", 3e-4, "adam", "tanh", 10, 5),
    ),
}
"""6: Copy, 7: Denoise, 8: sequential MNIST, 9: characters of PTB."""


def printed(table: TableName, model: str) -> Printed:
    """Return the row of a model."""
    return next(row for row in TABLES[table] if row.model == model)
