"""Output and reports on packages with one module in float."""

from pipeline.features.sensitivity.section import section
from pipeline.features.sensitivity.table import describe_method


def make_row(module, **changes):
    row = {"module": module, "sqnr_db": 4.9, "measured": True, "share": 0.98, "chosen": True}
    return {**row, "saved_bytes": 768, **changes}


SLOWER = {"bytes": 128, "metric": 0.975, "ms": {"median": 0.2, "low": 0.1, "high": 0.3}}
EVEN = {"bytes": -128, "metric": 0.0, "ms": {"median": -0.01, "low": -0.1, "high": 0.1}}
METHOD = {
    "calls": 4,
    "sqnr_db": 5.1,
    "floor_db": 20.0,
    "kept": ["layers.3"],
    "reached": True,
    "complete": True,
    "expected_db": 28.9,
    "overrides": {"modules": {"layers.3": "none"}},
    "operators": [],
    "runs": 4,
    "gradients": 16,
    "one_by_one": 6,
    "metric": "near",
    "metric_value": 0.0,
    "base_ms": 1.5,
    "modules": [
        make_row("layers.3", in_float=SLOWER),
        make_row("layers.4", chosen=False, in_float=EVEN),
        make_row("layers.1", chosen=False, measured=False),
    ],
}


def test_packages_with_a_module_in_float_have_a_table():
    text = "\n".join(describe_method("planted/forward", METHOD))
    start = text.index("in float  ")
    rows = [line.split() for line in text[start:].splitlines()[1:4]]
    assert rows == [
        ["layers.3", "+128", "+0.2", "+0.975"],
        ["layers.4", "-128", "-0.01", "(even)", "+0"],
        ["(all", "quantized)", "1.5", "0"],
    ]


def test_a_machine_that_cannot_run_them_has_no_times():
    row = make_row("layers.3", in_float={"bytes": 128, "ms": None})
    text = "\n".join(describe_method("m", {**METHOD, "modules": [row], "base_ms": None}))
    assert ["layers.3", "+128", "-"] in [line.split() for line in text.splitlines()]


def test_a_proposal_that_quantizes_nothing_is_none():
    everything = {**METHOD, "kept": [], "overrides": {}}
    *_, conclusion = describe_method("m", everything)
    wanted = "only float reaches 20 dB: set a lower floor, or leave `quantize` out"
    assert conclusion.strip() == wanted


def test_the_report_has_a_row_for_each_module():
    (_, table) = section({"sensitivity": {"methods": {"forward": METHOD}}}).parts
    kept, quiet, untried = table.rows
    assert (kept["in float: bytes"].text, quiet["in float: bytes"].text) == ("+128", "-128")
    assert kept["in float: a call"].text.startswith("+") and kept[""].text == "keep in float"
    assert untried["SQNR alone"].note == "estimated" and quiet[""] == ""
    assert not section({}).parts
