"""The end of a run says why methods are not judged or not run."""

import dataclasses
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
    assert list(describe_unjudged("not judged", reports)) == [
        "not judged: a/encode: no elements",
        "not judged: a/decode, b/run: no limit on its accuracy",
    ]
    assert list(describe_unjudged("not judged", {})) == []


def test_many_reasons_are_counted():
    methods = [method(f"m{number}", "not judged", f"SQNR {number} dB") for number in range(5)]
    lines = list(describe_unjudged("not judged", {"a": {"methods": methods}}))
    assert lines[:3] == [f"not judged: a/m{n}: SQNR {n} dB" for n in range(3)]
    assert lines[3:] == ["not judged: 2 more reasons in the reports"]


def test_a_method_that_did_not_run_has_its_reason():
    reports = {
        "a": {"methods": [method("encode", "not run", "no QNN on this machine")]},
        "b": {
            "methods": [method("f", "not run", "not requested"), method("g", "not run", "no QNN")],
            "only": ["g"],
        },
    }
    assert list(describe_unjudged("not run", reports)) == [
        "not run: a/encode: no QNN on this machine",
        "not run: b/g: no QNN",
    ]


@pytest.mark.parametrize("allow", [(), ("not-run",)])
def test_an_allowed_verdict_needs_no_reason(tmp_path, monkeypatch, allow):
    report = {"methods": [method("encode", "not run", "no QNN", kind="device")]}
    monkeypatch.setattr(notes, "read_fitting", lambda path: report)
    workspace = open_workspace(tmp_path)
    plan = SimpleNamespace(workspace=dataclasses.replace(workspace, allow=allow))
    action = Action("validate", "m", "p", "", {"of": "p"}, LinkInputs())
    lines = list(notes.describe_validated(plan, [make_event(action, "built")]))
    assert ("not run: p/encode: no QNN" in lines) == (not allow)


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
