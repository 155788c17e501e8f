"""How far apart the weights of two runs are, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.training._run import Run
from mnemoscope.training._trajectory import read_parameters, recorded_updates

ALL = "all"  # all parameters as one vector


@dataclass(frozen=True)
class Distances:
    """Distances between the weights of two runs, by parameter; ``"all"`` is the whole network as one vector."""

    updates: tuple[int, ...]
    """After which the runs are compared."""
    spectral: dict[str, tuple[float, ...]]
    """||W - W'||_2, after each of the updates; of a vector its Euclidean norm."""
    frobenius: dict[str, tuple[float, ...]]
    """||W - W'||_F."""
    norms: dict[str, tuple[float, ...]]
    """||W||_2 of the first run."""


def distances(one: Run, other: Run, parameters: Sequence[str] = ()) -> Distances:
    """Return how far the weights of two runs are apart after every update of which both have kept them.

    Args:
        one: a run with snapshots (`FitConfig.snapshot_every`) or, if it has none, with a trajectory (`record_every`).
        other: another one, with the same parameters.
        parameters: the beginnings of the names to look at, as "layer.weight_hh", or "all" for the whole network as one
            vector; by default all of them.
    """
    kept = _kept_by_both(one, other)
    spectral: dict[str, list[float]] = {}
    frobenius: dict[str, list[float]] = {}
    norms: dict[str, list[float]] = {}
    for update in kept.updates:
        first, second = (_chosen(kept.weights(run, update), parameters) for run in (one, other))
        _check_same(first, second, one, other)
        for name, weight, difference in _differences(first, second, parameters):
            spectral.setdefault(name, []).append(_spectral_norm(difference))
            frobenius.setdefault(name, []).append(float(difference.norm()))
            norms.setdefault(name, []).append(_spectral_norm(weight))
    if not spectral:
        names = ", ".join([*kept.weights(one, kept.updates[0]), ALL])
        raise MnemoscopeError(f"no parameter's name begins with {' or '.join(parameters)}; there are {names}")
    return Distances(tuple(kept.updates), _frozen(spectral), _frozen(frobenius), _frozen(norms))


@dataclass(frozen=True)
class _Kept:
    """The weights that two runs have kept after the same updates."""

    updates: list[int]
    are_snapshots: bool

    def weights(self, run: Run, update: int) -> dict[str, Tensor]:
        """Return a run's parameters in float64, by their names in a network that is not truncated."""
        named = run.snapshot(update) if self.are_snapshots else _from_trajectory(run, update)
        is_tied = run.about.network.get("tied") is True
        return {
            name.replace("layer.layer.", "layer.", 1): tensor.double()
            for name, tensor in named.items()
            if tensor.is_floating_point() and not (is_tied and name == "readout.weight")
        }


def _chosen(weights: dict[str, Tensor], parameters: Sequence[str]) -> dict[str, Tensor]:
    """The weights that are asked for: a snapshot may have kept others, or not have kept them."""
    if not parameters or ALL in parameters:
        return weights
    return {name: weight for name, weight in weights.items() if name.startswith(tuple(parameters))}


def _kept_by_both(one: Run, other: Run) -> _Kept:
    for are_snapshots in (True, False):
        folders = [run.files.snapshots if are_snapshots else run.files.trajectory for run in (one, other)]
        first, second = map(recorded_updates, folders)
        updates = sorted(set(first) & set(second))
        if updates:
            return _Kept(updates, are_snapshots)
    raise MnemoscopeError(
        f"{one.path} and {other.path} have kept no weights after the same updates; train both with snapshot-every"
    )


def _from_trajectory(run: Run, update: int) -> dict[str, Tensor]:
    vector = read_parameters(run.files.trajectory, update)
    named = dict(run.model().named_parameters())
    sizes = [parameter.numel() for parameter in named.values()]
    if vector.numel() != sum(sizes):
        raise MnemoscopeError(f"{run.files.trajectory} holds {vector.numel()} parameters; the run has {sum(sizes)}")
    parts = zip(named.items(), vector.split(sizes), strict=True)
    return {name: part.view_as(parameter) for (name, parameter), part in parts}


def _check_same(first: dict[str, Tensor], second: dict[str, Tensor], one: Run, other: Run) -> None:
    shapes, others = ({name: list(t.shape) for name, t in named.items()} for named in (first, second))
    for name in [*shapes, *others]:
        if shapes.get(name) != others.get(name):
            has = [f"{shape.get(name, 'nothing')} in {run.path}" for shape, run in ((shapes, one), (others, other))]
            raise MnemoscopeError(f"the runs have different networks: {name} is {' and '.join(has)}")


def _differences(
    first: dict[str, Tensor], second: dict[str, Tensor], parameters: Sequence[str]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, weight of the first run and difference, matrices (m, n) or vectors, of the chosen parameters."""
    for name, weight in first.items():
        if not parameters or any(name.startswith(beginning) for beginning in parameters):
            flat = weight.flatten(1) if weight.dim() > 1 else weight
            yield name, flat, flat - second[name].view_as(flat)
    if not parameters or ALL in parameters:
        whole = torch.cat([weight.flatten() for weight in first.values()])
        yield ALL, whole, whole - torch.cat([second[name].flatten() for name in first])


def _spectral_norm(weight: Tensor) -> float:
    """Return the largest singular value of a matrix, or the norm of a vector.

    It is taken from the smaller Gram matrix: far cheaper than an SVD where one side is long, as an embedding's.
    """
    if weight.dim() < 2:
        return float(weight.norm())
    gram = weight.mT @ weight if weight.shape[0] > weight.shape[1] else weight @ weight.mT
    return float(torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt())


def _frozen(lists: dict[str, list[float]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(values) for name, values in lists.items()}
