"""Running text: characters and words, read as one stream whose hidden state is carried from chunk to chunk."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch.nn.functional as F
from torch import Tensor

from mnemoscope.tasks._classification import entropy
from mnemoscope.tasks._corpora import Corpus, characters, words
from mnemoscope.tasks._seeded import one_hot
from mnemoscope.tasks._task import Batch, Split, Task, at_least, require


@dataclass(frozen=True)
class _RunningText(Task):
    """Predict the next symbol of a text at every step.

    The text is laid out as `size` streams side by side, and batch `step` holds the `step`-th chunk of each, so the
    hidden state is to be carried from one batch to the next (and cut off from its gradient) until `starts_anew`.
    """

    carries_state = True
    higher_is_better = False

    @property
    @abstractmethod
    def corpus(self) -> Corpus:
        """The encoded text; read and checked when first asked for, then kept in memory."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of a chunk. The text itself sets no length, so this is also how far back is compared with."""

    @property
    def needs(self) -> int:
        return self.length

    @property
    def input_size(self) -> int:
        return len(self.corpus.symbols)

    @property
    def output_size(self) -> int:
        return len(self.corpus.symbols)

    @cached_property
    def baseline(self) -> float:
        """The entropy of single symbols: the best prediction that looks at no context."""
        return entropy(self.corpus.train.bincount())

    def steps_per_epoch(self, size: int, split: Split = "train") -> int:
        return -(-(self._streams(size, split).shape[1] - 1) // self.length)

    def starts_anew(self, step: int, size: int, split: Split = "train") -> bool:
        """At the beginning of every pass over the text."""
        return step % self.steps_per_epoch(size, split) == 0

    def _streams(self, size: int, split: Split) -> Tensor:
        """(size, N // size): the text side by side, the few symbols that do not fill a column left out."""
        text: Tensor = getattr(self.corpus, split)
        require(2 * size <= len(text), "size", size, f"at most half of the {len(text)} symbols of the {split} text")
        return text[: len(text) // size * size].view(size, -1)

    def _chunk(self, step: int, size: int, split: Split) -> tuple[Tensor, Tensor]:
        """(T, B) symbols and the ones after them; the last chunk of a pass may be shorter."""
        start = step % self.steps_per_epoch(size, split) * self.length
        chunk = self._streams(size, split)[:, start : start + self.length + 1].t().long().contiguous()
        return chunk[:-1], chunk[1:]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Characters(_RunningText):
    """Predict the next character; in bits a character."""

    name = "characters"
    metric = "bpc"

    data: str = "ptb"
    """"ptb" for the Penn Treebank, or the path of a UTF-8 text file (plain or .gz), whose last tenth is held out."""
    bptt: int = 150
    """Steps of a chunk, through which gradients flow back."""

    def __post_init__(self) -> None:
        at_least(self, bptt=1)

    @property
    def length(self) -> int:
        return self.bptt

    @property
    def corpus(self) -> Corpus:
        return characters(self.data)

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        inputs, targets = self._chunk(step, size, split)
        return Batch(one_hot(inputs, self.input_size), targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        loss, correct = self.loss(outputs, targets).item(), outputs.argmax(-1) == targets
        return {"loss": loss, "bpc": loss / math.log(2), "accuracy": correct.float().mean().item()}


@dataclass(frozen=True)
class Words(_RunningText):
    """Predict the next word; in perplexity. Inputs are ids to embed, (T, B) int64."""

    name = "words"
    metric = "perplexity"
    token_input = True

    data: str = "wikitext-2"
    """"wikitext-2", "ptb", or the path of a UTF-8 text file (plain or .gz), whose last tenth is held out."""
    bptt: int = 80
    """Steps of a chunk, through which gradients flow back."""
    vocabulary: int = 0
    """Keep this many of the most frequent words and read the others as <unk>; 0 keeps all of the training text's."""

    def __post_init__(self) -> None:
        at_least(self, bptt=1, vocabulary=0)

    @property
    def length(self) -> int:
        return self.bptt

    @property
    def corpus(self) -> Corpus:
        return words(self.data, self.vocabulary)

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        return Batch(*self._chunk(step, size, split))

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        loss = self.loss(outputs, targets).item()
        return {"loss": loss, "perplexity": _perplexity(loss)}

    def combine(self, metrics: Sequence[dict[str, float]], weights: Sequence[float]) -> dict[str, float]:
        """The perplexity of the mean loss, which is not the mean of the perplexities."""
        together = super().combine(metrics, weights)
        return together | {"perplexity": _perplexity(together["loss"])}


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
