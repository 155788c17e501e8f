"""The network of an agent: observations into features, the recurrent network of any run, logits and a value."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import Layer
from mnemoscope.recurrence import Attention, State
from mnemoscope.rl._environment import Observation, Spec
from mnemoscope.training import NetworkConfig, SequenceModel

DEFAULT_FEATURES = 64  # of observations with cells or words, unless NetworkConfig.embedding says otherwise
_WORD_FEATURES = 32
_CELL_FEATURES = 16  # of a cell, before the convolutions
_MANY = 128  # observations from which on it is worth looking for equal ones


def to_tensor(observation: Observation) -> Tensor:
    """Return observations as rows of numbers (rows, size): the vector, then the cells, then the mission's words.

    Categories and words are small integers, which float32 holds exactly.
    """
    parts = [part for part in (observation.vector, observation.cells, observation.mission) if part is not None]
    flat = [part.reshape(len(part), -1) for part in parts]
    return torch.from_numpy(np.concatenate(flat, axis=1, dtype=np.float32, casting="unsafe"))


def observation_size(spec: Spec) -> int:
    """Return how many numbers `to_tensor` makes of one observation."""
    return spec.vector + _num_categories(spec) + spec.words


def _num_categories(spec: Spec) -> int:
    return 0 if spec.cells is None else spec.cells[0] * spec.cells[1] * len(spec.categories)


class Encoder(nn.Module):
    """Observations (..., size) into features (..., features): relu of a sum over the vector, the cells and the words.

    Categories and words are one-hot in meaning. Their linear map is a sum of rows of a table: one row for each category
    but the first of each channel of each cell, and one for each word. The first category (not seen, no color, open) and
    the absent word add nothing, so most rows need not be read. It takes a twentieth of the time of a convolution,
    which a spec can ask for: a table learns each cell for itself, a convolution what a thing is wherever it lies.
    Observations that occur many times, as in gridworlds, are encoded once.
    """

    def __init__(self, spec: Spec, features: int, gain: float = 1.0) -> None:
        super().__init__()
        self.sizes = (spec.vector, _num_categories(spec) + spec.words)
        self.bias = nn.Parameter(torch.zeros(features))
        self.vector = nn.Linear(spec.vector, features, bias=False) if spec.vector else None
        if self.vector is not None:
            with torch.no_grad():
                self.vector.weight.mul_(gain)

        # The row of category c > 0 of number i is row_before[i] + c. Words come last and share their rows.
        self.num_cells = _num_categories(spec)
        cells = 0 if spec.cells is None else spec.cells[0] * spec.cells[1]
        convolved = cells > 0 and spec.encoder == "conv"
        rows = [] if convolved else [categories - 1 for categories in spec.categories * cells]
        row_before = [sum(rows[:number]) - 1 for number in range(len(rows))] + [sum(rows) - 1] * spec.words
        self.row_before: Tensor
        self.register_buffer("row_before", torch.tensor(row_before), persistent=False)
        self.reader = _Reader(len(spec.vocabulary) + 1, features) if spec.words and spec.reading == "gru" else None
        self.words = spec.words
        count = sum(rows) + len(spec.vocabulary)
        std = (2 / max(len(row_before), 1)) ** 0.5
        self.table = nn.Parameter(torch.randn(count, features) * std * gain) if count else None
        self.convolution = _Convolution(spec, features, gain) if convolved else None

        # Along a random direction equal observations lie at the same place, and hardly ever others.
        self.direction: Tensor
        random = torch.Generator().manual_seed(0)
        self.register_buffer("direction", torch.rand(sum(self.sizes), generator=random), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        found = self._distinct(rows) if len(rows) >= _MANY else None
        if found is None:
            features = self._encode(rows)
        else:
            distinct, which = found
            features = F.embedding(which, self._encode(distinct))
        return features.view(*x.shape[:-1], -1)

    def _distinct(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the different rows, and which of them each row is; None if few occur twice."""
        place = rows.double() @ self.direction.double()  # equal rows lie at the same place
        places, which = place.unique(return_inverse=True)
        if 2 * len(places) > len(rows):
            return None
        one = which.new_empty(len(places)).scatter_(0, which, torch.arange(len(rows), device=which.device))
        distinct = rows[one]
        return (distinct, which) if bool((distinct[which] == rows).all()) else None

    def _encode(self, rows: Tensor) -> Tensor:
        vector, numbers = rows.split(self.sizes, dim=-1)
        total: Tensor = self.bias
        if self.vector is not None:
            total = total + self.vector(vector)
        if self.convolution is not None:
            cells, numbers = numbers.split([self.num_cells, self.words], dim=-1)
            total = total + self.convolution(cells)
        if self.table is not None:
            total = total + self._sum_of_rows(numbers)
        if self.reader is not None:
            total = total + self.reader(numbers[:, -self.words :].long())
        return torch.relu(total).expand(len(rows), -1)

    def _sum_of_rows(self, numbers: Tensor) -> Tensor:
        if self.reader is not None:
            numbers = numbers[:, : -self.words]
        present = numbers > 0
        rows = (numbers.long() + self.row_before[: numbers.shape[1]])[present]
        counts = present.sum(1)
        assert self.table is not None
        return F.embedding_bag(rows, self.table, counts.cumsum(0) - counts, mode="sum")


class _Convolution(nn.Module):
    """Categories of cells (rows, width * height * channels) into features by the convolutions of torch-ac.

    A cell is the sum of its categories' embeddings, the same wherever it lies. The last convolution is as large as what
    the others leave of a view: 2 by 2 of 7 by 7 cells.
    """

    def __init__(self, spec: Spec, features: int, gain: float) -> None:
        super().__init__()
        assert spec.cells is not None
        width, height = ((side - 1) // 2 - 1 for side in spec.cells)
        if min(width, height) < 1:
            raise MnemoscopeError(f"{spec.cells[0]} by {spec.cells[1]} cells are too few for convolutions; use a table")
        self.shape = (*spec.cells, len(spec.categories))
        self.row_before: Tensor
        row_before = torch.tensor([0, *spec.categories[:-1]]).cumsum(0)
        self.register_buffer("row_before", row_before, persistent=False)
        rows = torch.randn(sum(spec.categories), _CELL_FEATURES)
        self.table = nn.Parameter(rows * gain / len(spec.categories) ** 0.5)
        self.layers = nn.Sequential(
            *(nn.Conv2d(_CELL_FEATURES, 16, 2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 2), nn.ReLU(), nn.Conv2d(32, features, (width, height))),
        )

    def forward(self, cells: Tensor) -> Tensor:
        rows = cells.long().view(-1, *self.shape) + self.row_before
        image = F.embedding(rows, self.table).sum(3).permute(0, 3, 1, 2)
        features: Tensor = self.layers(image).flatten(1)
        return features


class _Reader(nn.Module):
    """Missions (rows, words) into features by a GRU. Rows with the same mission are read once."""

    def __init__(self, words: int, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, _WORD_FEATURES, padding_idx=0)
        self.gru = nn.GRU(_WORD_FEATURES, features)

    def forward(self, words: Tensor) -> Tensor:
        missions, which = words.unique(dim=0, return_inverse=True)
        lengths = (missions != 0).sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(self.embedding(missions.t()), lengths, enforce_sorted=False)
        _, last = self.gru(packed)
        return last[0][which]


class Policy(SequenceModel):
    """Observations -> features -> recurrent layer -> a logit for each action, and a value.

    It is the network that `NetworkConfig` describes for any task; `embedding` is the size of the features. 0 gives a
    vector to the layer as it is, and 64 features to cells and words. A `memoryless` policy begins every step from the
    initial state: the same network without memory, to compare with.
    """

    def __init__(self, spec: Spec, config: NetworkConfig, *, memoryless: bool = False) -> None:
        if config.dropout:
            raise MnemoscopeError("dropout is not for agents: what is replayed must be what was played; leave it out")
        if config.init == "system":
            raise MnemoscopeError("init = 'system' needs the task gaussian, whose system it is; got an environment")
        if config.tied:
            raise MnemoscopeError("tied is not for agents: they read observations and give actions; leave it out")
        only_vector = not config.embedding and spec.cells is None and not spec.words
        features = spec.vector if only_vector else config.embedding or DEFAULT_FEATURES
        super().__init__(features, spec.actions + 1, replace(config, embedding=0, embedding_gain=1.0))
        self.config = config
        self.spec = spec
        self.memoryless = memoryless
        self.input_size = observation_size(spec)
        self.encoder = nn.Identity() if only_vector else Encoder(spec, features, config.embedding_gain)

    def embed(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(x)
        return features

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return super().step(x, self.initial_state(len(x)) if self.memoryless else state)

    def observe(self, x: Tensor, state: State) -> tuple[Tensor, State, tuple[Attention, ...] | None]:
        return super().observe(x, self.initial_state(len(x)) if self.memoryless else state)

    def behind_encoder(self) -> Policy:
        """Return the same policy, with the same weights, for features in place of observations.

        Cells and words are categories, by which there are no gradients: scopes measure from here on.
        """
        inner = copy.copy(self)
        inner._modules = {**self._modules, "encoder": nn.Identity()}
        inner.input_size = int(self.layer.input_size)  # type: ignore[arg-type]
        return inner

    def forward(
        self, x: Tensor, state: State | None = None, *, starts: Tensor | None = None, bptt: int = 0
    ) -> tuple[Tensor, State]:
        if not self.memoryless:  # else there is nothing to truncate
            return super().forward(x, state, starts=starts, bptt=bptt)
        state = self.initial_state(x.shape[1])
        outputs = self.replay(x.flatten(0, 1), torch.tensor([x.shape[1]] * len(x)), state)
        return outputs.view(*x.shape[:2], -1), state

    def replay(self, x: Tensor, batch_sizes: Tensor, state: State) -> Tensor:
        """Return the outputs (frames, actions + 1) of the observations x (frames, size) of a packed sequence."""
        features = self.embed(x)
        rows = int(batch_sizes[0])
        if self.memoryless:  # every frame is a sequence of its own
            rows, state = len(x), self.initial_state(len(x))
        if self.memoryless or int(batch_sizes[-1]) == rows:  # all of one length: no need to pack
            h, _ = self.layer(features.view(-1, rows, features.shape[-1]), state)
            return self.read(h.reshape(len(x), -1), features)
        packed = PackedSequence(features, batch_sizes)
        if isinstance(self.layer, Layer | nn.RNNBase):
            return self.read(self.layer(packed, state)[0].data, features)
        padded, lengths = pad_packed_sequence(packed)  # other recurrences read whole batches; what is behind an end
        h, _ = self.layer(padded, state)  # changes no step before it
        return self.read(pack_padded_sequence(h, lengths).data, features)


def split_outputs(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the actions (..., actions) and the value (...) in a policy's outputs."""
    return outputs[..., :-1].log_softmax(-1), outputs[..., -1]
