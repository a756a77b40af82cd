"""The head of a page: scores with colors and changes, answers, and text to paste."""

import copy

import pytest

from pipeline.features.pages.fixes import fix_failure, fix_gate
from pipeline.features.pages.scores import list_answers, list_scores
from pipeline.features.pages.sections import failures
from pipeline.report.failures import group_failures
from tests.features.pages.test_method_list import many
from tests.support import golden

RECORDS = golden.records()
FULL = RECORDS["seq2seq-int8"]


def scores(report):
    return {score["title"]: score for score in list_scores(report)}


def test_scores_have_the_colours_of_their_gates_and_what_changed():
    size = scores(FULL)["size"]
    assert (size["text"], size["kind"]) == ("2.9 MB", "bad")
    assert (size["delta"], size["delta_kind"]) == ("+322.8 kB (+12.4 %)", "bad")
    memory = scores(FULL)["peak planned memory"]
    assert (memory["text"], memory["kind"], memory["note"]) == ("436.3 kB", "", "decode")
    assert memory["delta"] == "+82.2 kB (+45.6 %) in encode"
    accuracy = scores(FULL)["worst figure"]
    assert (accuracy["text"], accuracy["kind"]) == ("11.3 dB", "bad")
    assert accuracy["delta"] == "−24.8 dB in decode"
    assert scores(FULL)["nodes delegated"]["delta"] == "as in the baseline"


def test_without_gates_a_share_has_a_colour_and_a_size_has_none():
    vision = scores({**RECORDS["vision"], "gates": []})
    assert vision["nodes delegated"]["kind"] == "good" and vision["size"]["kind"] == ""
    assert {score["delta"] for score in vision.values()} == {""}
    assert "slowest method" in vision


def test_the_head_answers_what_failed_and_what_changed():
    failed, changed = list_answers(FULL)
    assert failed["lines"][0].startswith("decode: example 1, output[0]: absolute error 0.9113")
    assert failed["lines"][-1] == "and 1 more below"
    assert changed["lines"] == [
        "since the baseline: size of package +322.8 kB (+12.4 %), planned memory of encode +82.2 "
        "kB (+45.6 %), SQNR of decode −24.8 dB"
    ]


def test_methods_without_a_verdict_are_answered_by_reason():
    record = many(9)
    for method in record["methods"]:
        method |= {"verdict": "not judged", "verdict_reason": "no input moves it"}
    (unjudged,) = (part for part in list_answers(record) if part["title"] == "not judged")
    assert unjudged["lines"] == ["layer_0, layer_1, layer_2, layer_3 and 5 more: no input moves it"]


def fixes(record):
    """Return the fix of each group of failures, keyed by the methods that have it."""
    groups = group_failures(record["methods"])
    return {", ".join(group.methods): fix_failure(record, group) for group in groups}


def failing(what, about="", inputs=""):
    """Return a record of 9 methods, one of which fails in this way."""
    record = many(9)
    (failure,) = record["methods"][7]["failures"]
    failure |= {"what": what, "about": about, "inputs": inputs}
    return record


def test_a_quantization_is_fixed_in_the_module_that_loses_most():
    record = copy.deepcopy(FULL)
    for method in record["methods"]:
        method["failures"] = [f for f in method["failures"] if f.get("about") == "quantization"]
    assert fixes(record) == {
        "decode": "methods: {decode: {quantize: {modules: {"
        "decoder.1.cross_attention.query: none}}}}"
    }


def test_a_wrong_number_is_seen_again_by_its_script():
    assert fixes(many(9)) == {"layer_7": "python build/vision/reproduce/layer_7/reproduce.py"}


@pytest.mark.parametrize(
    ("failure", "fix"),
    [
        (
            ("it holds aten.dropout in training mode", "source"),
            "model.eval()  # before torch.export.export",
        ),
        (
            ("the reference is random: it is in training mode: drop (Dropout)", "reference"),
            "model.eval()  # before torch.export.export",
        ),
        (("differs before anything is rounded, by more", "quantization"), ""),
        (("the source is random: it calls aten.rand", "source"), ""),
        (("sample 0: argument 'x': rank 2, must be 3", "", "metric top1"), ""),
    ],
)
def test_a_fix_belongs_to_its_failure(failure, fix):
    assert fixes(failing(*failure)) == {"layer_7": fix}


def test_failures_without_a_fix_have_no_column_for_it():
    failed, *_ = failures.section(failing("takes other inputs")).parts
    assert failed.columns == ["what failed", "of", "config"]


def test_a_limit_that_is_exceeded_names_its_line():
    record = failing("absolute error 2e-06 exceeds 1e-09", inputs="example 0")
    record["places"] = {"validate.atol": "configs/vision.yaml:7"}
    failed, *_ = failures.section(record).parts
    assert failed.rows[0]["config"].text == "configs/vision.yaml:7"


def test_what_is_held_to_a_baseline_can_be_accepted():
    (growth,) = (gate for gate in FULL["gates"] if gate["gate"] == "max_size_growth")
    assert fix_gate(FULL, growth) == "doit baseline seq2seq-int8"
    assert fix_gate({**FULL, "baseline": None}, growth) == ""
    assert fix_gate(FULL, {"gate": "min_delegated_nodes"}) == ""


def test_one_culprit_of_several_methods_is_one_row():
    record = copy.deepcopy(FULL)
    decode = next(method for method in record["methods"] if method["method"] == "decode")
    record["methods"].append({**decode, "method": "prefill"})
    _, culprits, *_ = failures.section(record).parts
    assert [row["method"].text for row in culprits.rows] == ["decode, prefill"] * 2
