"""Models of other packages are examined right, through the public call; docs/compatibility.md lists them."""

import importlib.metadata
import pathlib
import warnings

import pytest
import torch
from compatibility import page
from zoo_models import ZOO

from mnemoscope import examine
from mnemoscope.scopes import SCOPES

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "compatibility.md"


def made(known):
    """The model and its inputs; skipped if its package is not there."""
    try:
        importlib.metadata.version(known.package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{known.package} is not installed: pip install -c constraints.txt -e '.[zoo]'")
    torch.manual_seed(0)
    return known.make()


@pytest.mark.parametrize("known", ZOO, ids=lambda known: f"{known.package}-{known.name}")
def test_known_answers(known):
    model, inputs = made(known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = examine(model, inputs, scopes=["recurrence", "horizon"])
        others = examine(model, inputs, scopes=[name for name in SCOPES if name not in found.findings], budget=20)
    assert not [f"{finding.scope}: {finding.why}" for finding in [*found, *others] if finding.status == "failed"]
    assert found["recurrence"].labels["kind"] == known.kind
    figures = found["horizon"].figures
    if known.kind == "recurrent":
        assert figures["horizon"] >= 1
    if known.field is not None:
        assert figures["receptive_field"] == known.field
    if known.reaches_all is not None:
        assert (figures["horizon"] == figures["lags"]) == known.reaches_all


@pytest.mark.parametrize("known", [k for k in ZOO if k.rate != 1], ids=lambda known: known.name)
def test_outputs_per_input(known):
    from mnemoscope.adapters import adapt

    model, inputs = made(known)
    with torch.no_grad():
        found = adapt(model, inputs)
    assert len(found.outputs) / len(found.features) == known.rate


def test_the_zoo_is_large_enough():
    assert len(ZOO) >= 30
    assert len({known.package for known in ZOO}) >= 8
    assert len({(known.package, known.name) for known in ZOO}) == len(ZOO)


def test_the_page_lists_the_zoo_and_the_clients():
    assert DOCUMENT.read_text("utf-8") == page(), "write it anew: python tests/zoo/compatibility.py"
