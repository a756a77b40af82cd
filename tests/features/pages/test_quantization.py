"""The effect of quantization on each method, as the report and the terminal show it."""

import jsonschema

from pipeline.features.pages.markdown import markdown
from pipeline.features.pages.sections.quantization import section
from pipeline.features.schemas.record_schemas import report_schema
from pipeline.features.summary.notes import warn_of_quantization
from pipeline.report.render import render
from tests.features.pages.test_markdown import method, rows, validation


def facts(**changes):
    return {
        "quantizer": "xnnpack",
        "activations": ["static"],
        "calibration": {"source": "calibration_inputs", "inputs": 12},
        "weights": {"bytes": 4000, "quantized": 1000},
        "compute": {"multiplications": 200, "quantized": 150},
        "conversions": 5,
        "left_float": [{"name": "lstm.weight", "bytes": 3000, "why": "xnnpack quantizes no lstm"}],
        "observers": {"count": 3, "remarked": 0, "remarks": []},
        "warnings": [],
    } | changes


REMARK = {
    "kind": "one value",
    "value": "aten.relu in module 1",
    "module": "1",
    "seen": [0.0, 0.0],
    "range": None,
    "nonfinite": 0,
}
CUT = REMARK | {"kind": "cut off", "value": "input x", "seen": [-1.0, 20.0], "range": [-1.0, 8.0]}
DECODE = facts(
    calibration={"source": "generated", "inputs": 8},
    weights={"bytes": 4000, "quantized": 0},
    observers={"count": 3, "remarked": 2, "remarks": [REMARK, CUT]},
    warnings=["xnnpack quantized none of its weights"],
)
EMBED = facts(
    quantizer="torchao",
    activations=[],
    calibration={"source": "none", "inputs": 0},
    compute={"multiplications": 0, "quantized": 0},
    left_float=[],
    observers=None,
)
RECORD = validation(method("encode"), method("decode"), method("embed")) | {
    "quantization": {"decode": DECODE, "embed": EMBED, "encode": facts()}
}


def test_records_are_valid():
    jsonschema.Draft202012Validator(report_schema()).validate(RECORD)


def test_inputs_and_shares_are_told_by_method():
    first, second, third = rows(markdown(RECORD), "Quantization by method")
    assert first == [
        "`encode`",
        "`xnnpack`",
        "static",
        "12 inputs (of calibration_inputs)",
        "25.0 % (of 4.0 kB as floats)",
        "75.0 % (of 200 multiplications)",
    ]
    assert second[3] == "**8 inputs** (generated at random)"
    assert second[4] == "**0.0 %** (of 4.0 kB as floats)"
    assert third[2:] == ["in floating point", "nothing; not needed", *third[4:]]
    assert third[5] == "–"


def test_what_stayed_float_and_what_observers_saw_is_told():
    text = markdown(RECORD)
    assert rows(text, "Largest tensors left in floating point") == [
        ["`lstm.weight`", f"`{name}`", "3,000", "xnnpack quantizes no lstm"]
        for name in ("encode", "decode")
    ]
    one, cut = rows(text, "Unreliable observed ranges")
    assert one == ["`aten.relu in module 1`", "`decode`", "saw one value", "0", "–", "0"]
    assert cut[2:5] == ["cuts off a large part of what it saw", "−1.00 to 20.0", "−1.00 to 8.00"]
    assert rows(text, "Warnings") == [["`decode`", "xnnpack quantized none of its weights"]]


def test_a_page_has_the_section_and_packages_without_quantization_do_not():
    page = render(RECORD)["report.html"].decode()
    assert "Largest tensors left in floating point" in page
    assert not section(validation(method("encode"))).parts


def test_the_terminal_says_what_a_person_must_hear():
    methods = {"decode": {"quantization": DECODE}, "encode": {"quantization": facts()}, "plain": {}}
    assert list(warn_of_quantization("pair", methods)) == [
        "pair/decode: xnnpack quantized none of its weights"
    ]
