import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mnemoscope import LSTM, Examination, Finding, MnemoscopeError, examine
from mnemoscope.scopes import SCOPES, scope


def examination(**changes):
    finding = Finding(
        "horizon",
        "Gradients reach 38 steps back.",
        "estimated",
        figures={"horizon": 38, "rate": float("nan")},
        series={"input_gradient": torch.linspace(1, 0, 5), "steps": np.arange(3)},
        spread={"input_gradient": np.ones((2, 5))},
        labels={"law": "exponential", "names": ["a", "b"]},
        assumptions=("one",),
        warnings=("two",),
        method="m",
        seconds=0.5,
    )
    figures = {"lambda": 0.5, "seen": 0.4}
    other = Finding("stability", "It is stable.", "certified", "||V|| < 1", figures, certified=("lambda",))
    fields = dict(verdict="Good.", about={"model": "LSTM", "ünï": "<b>"}, partial=True, seconds=1.5)
    return Examination({"horizon": finding, "stability": other}, **{**fields, **changes})


def test_round_trip(tmp_path):
    given = examination()
    given.save(tmp_path / "run" / "page")
    found = Examination.load(tmp_path / "run" / "page")
    assert found == given
    assert found["horizon"].series["steps"].dtype == np.int64
    assert np.isnan(found["horizon"].figures["rate"])
    assert [finding.scope for finding in found] == ["horizon", "stability"]


@settings(deadline=None)
@given(
    st.dictionaries(st.text(min_size=1), st.floats()),
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        hnp.arrays(
            st.sampled_from([np.float32, np.float64, np.int64, np.bool_]), hnp.array_shapes(min_dims=0, max_side=3)
        ),
    ),
)
def test_round_trip_of_any_figures_and_series(tmp_path_factory, figures, series):
    figures = {name.encode("utf-8", "replace").decode(): value for name, value in figures.items()}
    given = Examination({"x": Finding("x", "s", "estimated", figures=figures, series=series)}, "v")
    folder = tmp_path_factory.mktemp("findings")
    given.save(folder)
    assert Examination.load(folder) == given


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"series": {"values": torch.ones(2, dtype=torch.complex64)}}, "series of 'values' is of complex64"),
        ({"spread": {"values": ["a", "b"]}}, "spread of 'values' is of <U1"),
        ({"series": {"values": [None, 1.0]}}, "series of 'values' is of object"),
        ({"labels": {"count": 3}}, "labels.count = 3 is not allowed; it must be a string or a list"),
        ({"warnings": "one"}, "warnings = 'one' is not allowed; it must be a list"),
        ({"method": None}, "method = None is not allowed; it must be a string"),
    ],
)
def test_what_no_file_could_give_back_is_refused_at_once(wrong, message):
    with pytest.raises(MnemoscopeError, match=message):
        Finding("mine", "s", "estimated", **wrong)


def test_an_examination_is_about_words():
    with pytest.raises(MnemoscopeError, match=r"about\.needs = 30 is not allowed; it must be a string"):
        examination(about={"needs": 30})


def test_a_file_without_titles_loads(tmp_path):
    path = examination().save(tmp_path)
    document = json.loads(path.read_text())
    for finding in document["findings"]:
        for name in ("title", "question", "help"):
            del finding[name]
    path.write_text(json.dumps(document))
    assert Examination.load(tmp_path) == examination()


def test_status_belongs_to_a_figure(tmp_path):
    examination().save(tmp_path)
    stability = Examination.load(tmp_path)["stability"]
    assert stability.status_of("lambda") == "certified"
    assert stability.status_of("seen") == "estimated"
    assert Finding("x", "s", "skipped").status_of("lambda") == "skipped"
    with pytest.raises(MnemoscopeError, match="stability has no figure 'lamda'; it has lambda, seen"):
        stability.status_of("lamda")


def test_certified_names_a_figure():
    with pytest.raises(MnemoscopeError, match="certifies mu, which are not among its figures"):
        Finding("x", "s", "estimated", figures={"lambda": 1.0}, certified=("mu",))
    with pytest.raises(MnemoscopeError, match="is certified, but names no figure"):
        Finding("x", "s", "certified", figures={"lambda": 1.0})


def test_format_1_loads_and_certifies_nothing(tmp_path):
    """Certificates of that format covered figures that were measured, and ignored stacks and start states."""
    path = examination().save(tmp_path)
    document = json.loads(path.read_text())
    document["format"] = 1
    for finding in document["findings"]:
        del finding["certified"]
    path.write_text(json.dumps(document))
    loaded = Examination.load(tmp_path)
    assert loaded["horizon"] == examination()["horizon"]
    assert loaded["stability"].status == loaded["stability"].status_of("lambda") == "estimated"


def test_file_is_strict_json_with_nan_as_text(tmp_path):
    path = examination().save(tmp_path)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert document["findings"][0]["figures"] == {"horizon": 38.0, "rate": "nan"}


def test_equality_compares_arrays():
    one, other = examination(), examination()
    other["horizon"].series["input_gradient"][2] += 1e-7
    assert one != other


@pytest.mark.parametrize("failing", [1, 2])
def test_failed_save_leaves_the_old_examination(tmp_path, monkeypatch, failing):
    old, new = examination(), examination(verdict="Better.")
    new["horizon"].series["steps"][0] = 99
    old.save(tmp_path)
    replaced = []
    real = os.replace

    def replace(source, target):
        replaced.append(target)
        if len(replaced) == failing:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(MnemoscopeError, match="No space left"):
        new.save(tmp_path)
    assert Examination.load(tmp_path) == old
    monkeypatch.undo()
    new.save(tmp_path)
    assert Examination.load(tmp_path) == new
    assert sorted(p.suffix for p in tmp_path.iterdir() if p.name != ".lock") == [".json", ".safetensors"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 1}', '{"format": 2}', '{"format": 1, "arrays": 3, "findings": []}', "[" * 9999]
)
def test_load_refuses_corrupt_files(tmp_path, text):
    (tmp_path / "findings.json").write_text(text)
    with pytest.raises(MnemoscopeError):
        Examination.load(tmp_path)


def test_load_reads_arrays_from_the_same_folder_only(tmp_path):
    inner = tmp_path / "inner"
    path = examination().save(inner)
    document = json.loads(path.read_text())
    (inner / document["arrays"]).rename(tmp_path / document["arrays"])
    path.write_text(json.dumps({**document, "arrays": f"../{document['arrays']}"}))
    with pytest.raises(MnemoscopeError, match="it must be a file's name"):
        Examination.load(inner)


def test_load_of_a_missing_folder():
    with pytest.raises(MnemoscopeError, match="cannot read no/such/folder"):
        Examination.load("no/such/folder")


def test_finding_copies_its_arrays():
    tensor = torch.zeros(3, requires_grad=True)
    finding = Finding("x", "s", "estimated", series={"a": tensor})
    with torch.no_grad():
        tensor += 1
    assert finding.series["a"].tolist() == [0, 0, 0]


def test_bfloat16_becomes_float32():
    kept = Finding("s", "S.", "estimated", series={"a": torch.tensor([0.5, 3.0], dtype=torch.bfloat16)}).series["a"]
    assert kept.dtype == np.float32
    assert kept.tolist() == [0.5, 3.0]


def test_refuses_unknown_status():
    with pytest.raises(MnemoscopeError, match="certified, estimated, not applicable, skipped, failed"):
        Finding("x", "s", "measured")


def test_getitem_of_a_missing_finding():
    with pytest.raises(MnemoscopeError, match="no finding 'paths'; there are horizon, stability"):
        examination()["paths"]


def test_a_finding_is_kept_under_its_scopes_name(monkeypatch, tmp_path):
    def mine(subject):
        return Finding("recurrence", "Mine.", "estimated")  # copied from another scope

    monkeypatch.setitem(SCOPES, "mine", None)  # it is taken out again afterwards
    scope("Whose is it?", cost=1)(mine)
    found = examine(LSTM(3, 5), torch.randn(6, 2, 3), scopes=["mine", "recurrence"])
    found.save(tmp_path)
    assert {finding.scope: finding.sentence for finding in Examination.load(tmp_path)} == {
        "recurrence": found["recurrence"].sentence,
        "mine": "Mine.",
    }
