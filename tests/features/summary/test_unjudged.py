"""The end of a run says why methods are not judged."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.features.summary import notes
from pipeline.features.summary.unjudged import describe_unjudged
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.report.events import Outcome, make_event
from pipeline.store.workspace import open_workspace


def method(name, verdict="passed", reason="", **parts):
    return {"method": name, "verdict": verdict, "verdict_reason": reason, **parts}


def judged(verdict, reason):
    return {"verdict": verdict, "reason": reason}


def test_each_reason_has_a_line_with_its_methods():
    no_limit = judged("not judged", "no limit on its accuracy")
    reports = {
        "b": {"methods": [method("run", quantization=no_limit)]},
        "a": {
            "methods": [
                method("encode", "not judged", "no elements"),
                method("decode", quantization=no_limit, reference=judged("passed", "")),
                method("step", "failed", "is wrong", quantization=no_limit),
                method("fine", quantization=judged("passed", "within min_sqnr")),
            ]
        },
    }
    assert list(describe_unjudged(reports)) == [
        "not judged: a/encode: no elements",
        "not judged: a/decode, b/run: no limit on its accuracy",
    ]
    assert list(describe_unjudged({})) == []


def test_many_reasons_are_counted():
    methods = [method(f"m{number}", "not judged", f"SQNR {number} dB") for number in range(5)]
    lines = list(describe_unjudged({"a": {"methods": methods}}))
    assert lines[:3] == [f"not judged: a/m{n}: SQNR {n} dB" for n in range(3)]
    assert lines[3:] == ["not judged: 2 more reasons in the reports"]


@pytest.mark.parametrize("outcome", ["built", "not-run"])
def test_the_report_of_an_earlier_run_is_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    report = {"methods": [method("encode", "not judged", "no elements", kind="device")]}
    monkeypatch.setattr(notes, "read_fitting", lambda path: report)
    plan = SimpleNamespace(workspace=open_workspace(tmp_path))
    action = Action("validate", "m", "p", "", {"of": "p"}, LinkInputs())
    lines = list(notes.describe_validated(plan, [make_event(action, outcome)]))
    judged_lines = [line for line in lines if line.startswith("not judged")]
    assert judged_lines == (["not judged: p/encode: no elements"] if outcome == "built" else [])
