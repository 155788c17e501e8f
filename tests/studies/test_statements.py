"""Studies of statements: what their charts show."""

from mnemoscope.studies import tightness

CASES = [  # statement, case, measured, relation, bound, measured / bound
    ["lemma", "upper", 1.0, "<=", 2.0, 0.5],
    ["lemma", "lower", 3.0, ">=", 2.0, 1.5],
    ["claim", "lower", 8.0, ">=", 2.0, 4.0],
    ["claim", "equation", 2.0, "==", 2.0, 1.0],
    ["claim", "upper and negative", -4.0, "<=", -2.0, 2.0],
    ["claim", "lower and negative", 4.0, ">=", -2.0, -2.0],
    ["claim", "no ratio", float("inf"), "<=", 2.0, None],
]


def test_a_chart_of_checks_says_on_which_side_of_1_they_must_be():
    """One chart had the dots of upper and of lower bounds: nobody could see which of them did not hold."""
    panels = tightness([{"statements": {"cases": CASES}}])
    found = {
        chart.title: {mark.name: mark.y[mark.y == mark.y].tolist() for mark in chart.marks} for chart in panels.charts
    }
    assert found == {
        "Upper bounds: not above 1": {"lemma": [0.5], "claim": [-2.0]},
        "Lower bounds: not below 1": {"lemma": [1.5], "claim": [4.0, 2.0]},
        "Equations: 1, up to a tolerance": {"claim": [1.0]},
    }
    colors = {(mark.name, mark.style.color) for chart in panels.charts for mark in chart.marks}
    assert colors == {("lemma", 0), ("claim", 1)}
    assert all(marker.at == 1 for chart in panels.charts for marker in chart.markers)


def test_a_side_without_checks_has_no_chart():
    (chart,) = tightness([{"statements": {"cases": CASES[:1]}}]).charts
    assert chart.key == "tightness-upper"
