"""Copy and Denoise: ten symbols to repeat after a long delay (Kerg et al. 2020)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.tasks._seeded import one_hot, random_permutations
from mnemoscope.tasks._task import Batch, Split, Task, require_at_least

SYMBOLS = 10  # to remember, each one of 1..8
ALPHABET = 8
BLANK = 0
MARKER = 9


@dataclass(frozen=True)
class _SymbolRecall(Task):
    """T + 20 steps: ten symbols somewhere, a marker, and ten steps in which they are to be repeated in order."""

    solved = 0.995  # of the held-out symbols; then above 99 % on any others too
    input_size = ALPHABET + 2
    output_size = ALPHABET + 1

    T: int = 100
    """Steps between the symbols and their repetition."""

    def __post_init__(self) -> None:
        require_at_least(self, T=1)

    @property
    def length(self) -> int:
        return self.T + 2 * SYMBOLS

    @property
    def needs(self) -> int:
        return self.T + SYMBOLS

    @property
    def baseline(self) -> float:
        """10 ln 8 / (T + 20): blanks are certain, and every symbol is a guess among eight."""
        return SYMBOLS * math.log(ALPHABET) / self.length

    @property
    def answer_share(self) -> float:
        """10 / (T + 20): the loss is a mean over all steps, and blanks are soon certain."""
        return SYMBOLS / self.length

    @abstractmethod
    def symbol_steps(self, size: int, random: torch.Generator) -> Tensor:
        """Return the steps at which the symbols are shown, in ascending order (10, size)."""

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        random = self.generator(split, step)
        symbols = torch.randint(1, ALPHABET + 1, (SYMBOLS, size), generator=random, device="cpu")
        inputs = torch.full((self.length, size), BLANK, device="cpu")
        inputs.scatter_(0, self.symbol_steps(size, random), symbols)
        inputs[self.T + SYMBOLS - 1] = MARKER
        targets = torch.full_like(inputs, BLANK)
        targets[-SYMBOLS:] = symbols
        return Batch(one_hot(inputs, self.input_size), targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # The cross-entropy. Over a last dimension of so few classes torch's softmax is four times slower.
        log_probabilities = F.log_softmax(outputs.transpose(1, 2), 1).transpose(1, 2)
        return F.nll_loss(log_probabilities.flatten(0, 1), targets.flatten())

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """`accuracy` counts the last ten steps only: the blanks before them are easy."""
        correct = outputs[-SYMBOLS:].argmax(-1) == targets[-SYMBOLS:]
        return {"loss": self.loss(outputs, targets).item(), "accuracy": correct.float().mean().item()}


@dataclass(frozen=True)
class Copy(_SymbolRecall):
    """Ten symbols, T - 1 blanks, a marker: repeat the symbols.

    Examples:
        >>> from mnemoscope.tasks import Copy
        >>> batch = Copy(T=50).batch(0, 4)
        >>> batch.inputs.shape, batch.targets.shape
        (torch.Size([70, 4, 10]), torch.Size([70, 4]))
    """

    name = "copy"

    def symbol_steps(self, size: int, random: torch.Generator) -> Tensor:
        return torch.arange(SYMBOLS, device="cpu").unsqueeze(1).expand(SYMBOLS, size)


@dataclass(frozen=True)
class Denoise(_SymbolRecall):
    """Ten symbols scattered among T - 1 blanks, a marker: repeat the symbols in order.

    Their steps are distinct. (Steps drawn with replacement, also found in the literature, overwrite symbols, which then
    cannot be learned.)
    """

    name = "denoise"

    def symbol_steps(self, size: int, random: torch.Generator) -> Tensor:
        return random_permutations(self.T + SYMBOLS - 1, size, random)[:SYMBOLS].sort(0).values
