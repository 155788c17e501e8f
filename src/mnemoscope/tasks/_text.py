"""Running text: characters or words as one stream, with the hidden state carried from chunk to chunk."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch.nn.functional as F
from torch import Tensor

from mnemoscope.schema import added_later
from mnemoscope.tasks._classification import entropy
from mnemoscope.tasks._corpora import CHARACTERS, WORDS, Corpus, absolute, characters, corpus_sha256, words
from mnemoscope.tasks._seeded import one_hot
from mnemoscope.tasks._task import Batch, Split, Task, require, require_at_least


@dataclass(frozen=True)
class _RunningText(Task):
    """Predict the next symbol of a text at every step.

    The text is laid out as `size` streams side by side, and batch `step` holds the `step`-th chunk of each. So the
    hidden state is carried, detached, from one batch to the next until `resets_state`.
    """

    carries_state = True
    higher_is_better = False

    @property
    @abstractmethod
    def corpus(self) -> Corpus:
        """The encoded text; read and checked at first use, then kept in memory."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of a chunk. The text itself sets no length, so this is also how far back the task needs."""

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
    def data_sha256(self) -> str:
        return corpus_sha256(self.corpus)

    @cached_property
    def baseline(self) -> float:
        """The entropy of single symbols: the loss of the best prediction without context."""
        return entropy(self.corpus.train.bincount())

    def steps_per_epoch(self, size: int, split: Split = "train") -> int:
        predictions = self._streams(size, split).shape[1] - 1
        return -(-predictions // self.length)

    def resets_state(self, step: int, size: int, split: Split = "train") -> bool:
        """True at the beginning of every pass over the text."""
        return step % self.steps_per_epoch(size, split) == 0

    def _streams(self, size: int, split: Split) -> Tensor:
        """Return the text as streams side by side (size, N // size); symbols that do not fill a row are dropped."""
        text: Tensor = getattr(self.corpus, split)
        require(2 * size <= len(text), "size", size, f"at most half of the {len(text)} symbols of the {split} text")
        return text[: len(text) // size * size].view(size, -1)

    def _chunk(self, step: int, size: int, split: Split) -> tuple[Tensor, Tensor]:
        """Return symbols (T, B) and the ones after them (T, B). The last chunk of a pass may be shorter."""
        start = step % self.steps_per_epoch(size, split) * self.length
        chunk = self._streams(size, split)[:, start : start + self.length + 1].t().long().contiguous()
        return chunk[:-1], chunk[1:]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Characters(_RunningText):
    """Predict the next character; in bits per character."""

    name = "characters"
    metric = "bpc"

    data: str = "ptb"
    """"ptb" for the Penn Treebank, or the path of a UTF-8 text file (plain or .gz), whose last tenth is held out."""
    bptt: int = 150
    """Steps of a chunk, through which gradients flow back."""
    ids: bool = added_later(False)
    """Whether inputs are ids (T, B), which a network can embed, instead of one-hot vectors."""

    def __post_init__(self) -> None:
        require_at_least(self, bptt=1)
        object.__setattr__(self, "data", absolute(self.data, CHARACTERS))
        object.__setattr__(self, "token_input", self.ids)

    @property
    def length(self) -> int:
        return self.bptt

    @property
    def corpus(self) -> Corpus:
        return characters(self.data)

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        inputs, targets = self._chunk(step, size, split)
        return Batch(inputs if self.ids else one_hot(inputs, self.input_size), targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        loss = self.loss(outputs, targets).item()
        correct = outputs.argmax(-1) == targets
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
        require_at_least(self, bptt=1, vocabulary=0)
        object.__setattr__(self, "data", absolute(self.data, WORDS))

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
        """Return the weighted means, with the perplexity of the mean loss, not the mean of the perplexities."""
        means = super().combine(metrics, weights)
        return {**means, "perplexity": _perplexity(means["loss"])}


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
