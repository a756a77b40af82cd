"""The list of methods: its order, its colors, and what stays short with many methods."""

import copy

import pytest

from pipeline.features.pages.method_list import filter_words, list_methods, rate_share
from pipeline.features.pages.render import breakable, with_code
from pipeline.report.render import render
from tests.support import golden

RECORDS = golden.records()
FULL = RECORDS["seq2seq-int8"]


def many(count):
    """Return a record with `count` methods like `features` of vision, and one that failed."""
    record = copy.deepcopy(RECORDS["vision"])
    method = record["methods"][0]
    names = [f"layer_{number}" for number in range(count)]
    record["methods"] = [{**method, "method": name} for name in names]
    record["delegation"] = dict.fromkeys(names, record["delegation"]["features"])
    failure = {"method": "layer_7", "inputs": "example 0", "output": "", "what": "is too large"}
    failed = {"ok": False, "verdict": "failed", "failures": [failure]}
    record["methods"][7] |= failed
    return record | {"ok": False, "verdict": "failed", "failures": ["layer_7: is too large"]}


def test_the_worst_method_comes_first_with_its_figure_and_limit():
    first, *others = list_methods(FULL)
    assert (first["name"], first["verdict"], first["kind"]) == ("decode", "failed", "bad")
    assert (first["figure"], first["limit"], first["ratio_kind"]) == ("11.3 dB", "≥ 30.0 dB", "bad")
    assert first["ratio"] > 1 and first["backends"] == ["XnnpackBackend"]
    assert "failed" not in [row["verdict"] for row in others]
    assert any("SQNR 17.2 dB" in text for _, text in first["sentences"])


def test_rows_can_be_filtered_by_what_some_have():
    words = filter_words(list_methods(many(9)))
    assert words == {"verdict": ["failed", "passed"], "backend": ["XnnpackBackend"]}


@pytest.mark.parametrize(
    ("share", "gates", "kind"),
    [
        (0.95, [], "good"),
        (0.7, [], "warn"),
        (0.2, [], "bad"),
        (0.2, [{"gate": "min_delegated_nodes", "method": "m", "ok": True}], "good"),
        (0.95, [{"gate": "min_delegated_nodes", "method": "m", "ok": False}], "bad"),
        (None, [], "soft"),
    ],
)
def test_a_share_has_the_colour_of_its_gate(share, gates, kind):
    assert rate_share({"gates": gates}, "m", share) == kind


def test_what_is_portable_on_purpose_is_not_rated():
    assert rate_share({"portable": ["m"]}, "m", 0.0) == "soft"


def test_names_break_behind_their_marks_alone():
    assert breakable("a.b_c/<d>-e") == "a.<wbr>b_<wbr>c/&lt;d&gt;-<wbr>e"


def test_what_a_sentence_quotes_is_code():
    assert with_code("set `atol: <x>` or `rtol`; a lone ` stays") == (
        "set <code>atol: &lt;x&gt;</code> or <code>rtol</code>; a lone ` stays"
    )
    record = many(8)
    record["methods"][0] |= {"verdict": "not judged", "verdict_reason": "set `<b>` for it"}
    page = render(record)["report.html"].decode()
    assert page.count("set <code>&lt;b&gt;</code> for it") == 2  # in answers and list
    assert "set `" not in page


def test_charts_of_many_methods_show_a_dozen_and_long_tables_are_folded():
    page = render(many(40))["report.html"].decode()
    assert page.count("<details id=") == 40
    assert "The 12 of 40 methods with the least delegation." in page
    assert "The 12 slowest of 40 methods." in page
    assert "<summary>Delegation by method (40)</summary>" in page
    assert "<summary>Delegation by method" not in render(many(9))["report.html"].decode()


def test_a_method_whose_gate_failed_comes_before_those_that_passed():
    record = many(9)
    gate = {"gate": "min_delegated_nodes", "method": "layer_8", "ok": False, "sentence": "less"}
    record["gates"] = [*(record.get("gates") or ()), {**gate, "figure": 0.5, "limit": 0.9}]
    assert {row["name"] for row in list_methods(record)[:2]} == {"layer_7", "layer_8"}


def test_a_number_does_not_break_into_lines():
    assert breakable("stage_3, 5.25 × its source of a.b") == (
        "stage_<wbr>3, 5.25 × its source of a.<wbr>b"
    )
    figures = breakable("load 85.9 ms of x-y at [0, 35] (-0.14, must be -0.25)")
    assert figures == "load 85.9\N{NO-BREAK SPACE}ms of x-<wbr>y at [0, 35] (-0.14, must be -0.25)"
