"""The figures of a trial, from the records of its package."""

import json

import pytest

from pipeline.features.tuning.figures import (
    find_faults,
    list_unjudged,
    read_figures,
    read_held_out,
)
from tests.support.builds import contents, manifest


def call(origin, *sqnrs, **facts):
    outputs = [{"sqnr_db": sqnr, "max_abs": 1 / 2**number} for number, sqnr in enumerate(sqnrs)]
    return {"origin": origin, "outputs": outputs, **facts}


TOP1 = {
    "value": 0.75,
    "drop": 0.01,
    "source": 0.76,
    "halves": [{"value": 0.8, "drop": 0.02}, {"value": 0.7, "drop": 0.0}],
}


def report_of(**changes):
    device = {"run_ms": 2.0, "p95_ms": 3.0, "load_ms": 1.0, "memory": {"peak": 100}}
    encode = {
        "method": "encode",
        "runs": [
            call("example 0", 40.0),
            call("example 1", 30.0),
            call("example 2", "inf"),
            call("zeros", 5.0, generated=True, case="zeros"),
            call("generated 0", 1.0, generated=True),
        ],
        "devices": {"phone": device},
        "metrics": {"top1": TOP1, "vision.map": {"value": 0.5}},
    }
    decode = {
        "method": "decode",
        "runs": [call("generated 0", 50.0, None, generated=True)],
        "devices": {"phone": device},
    }
    record = {
        "package": "asr",
        "ok": True,
        "verdict": "passed",
        "failures": [],
        "settings": {},
        "files": {"asr.pte": "a" * 64},
        "methods": [encode, decode],
        **changes,
    }
    return record


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose records aren't checked: they contain only what figures need."""
    for module in ("gates", "tuning"):
        monkeypatch.setattr(
            f"pipeline.features.{module}.figures.read_fitting",
            lambda path: json.loads(path.read_text()) if path.exists() else None,
        )
    monkeypatch.setattr("pipeline.features.gates.figures.fits_name", lambda name, record: True)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest()))
    (tmp_path / "contents.json").write_text(json.dumps(contents()))
    (tmp_path / "report.json").write_text(json.dumps(report_of()))
    return tmp_path


def test_figures_have_names(folder):
    figures = {
        "size": 1000,
        "delegated_nodes": 17 / 20,
        "delegated_ops": 2 / 4,
        "planned_memory": 2304,
        "sqnr": 40.0,
        "max_abs": 1.0,
        "latency.phone": 4.0,
        "latency_p95.phone": 6.0,
        "load_time.phone": 2.0,
        "peak_memory.phone": 100,
        "metrics.top1": 0.8,  # on the samples used for the choice
        "metrics.top1.drop": 0.02,
        "metrics.top1.source": 0.76,
        "metrics.vision.map": 0.5,
        "methods.encode.devices.phone.p95_ms": 3.0,
    }
    unknown = ["latency", "latency.watch", "metrics.wer", "methods.none.runs"]
    assert read_figures(folder, [*figures, *unknown]) == pytest.approx(figures)


def test_half_of_the_examples_is_held_out(folder):
    assert read_held_out(folder, ["size", "sqnr", "max_abs"]) == {"sqnr": 30.0, "max_abs": 1.0}


def test_half_of_the_samples_of_a_metric_is_held_out(folder):
    names = ["metrics.top1", "metrics.top1.drop", "metrics.top1.source", "metrics.vision.map"]
    assert read_held_out(folder, names) == {"metrics.top1": 0.7, "metrics.top1.drop": 0.0}


def test_unjudged_methods_have_reasons(folder):
    assert list(list_unjudged(folder)) == []
    encode = {"method": "encode", "verdict": "passed"}
    encode["quantization"] = {"verdict": "not judged", "reason": "no limit; set `min_sqnr`"}
    decode = {"method": "decode", "verdict": "not judged", "verdict_reason": "no inputs"}
    (folder / "report.json").write_text(json.dumps(report_of(methods=[encode, decode])))
    assert list(list_unjudged(folder)) == [
        "encode is not judged: no limit; set `min_sqnr`",
        "decode is not judged: no inputs",
    ]


def test_a_failed_validation_is_a_fault(folder):
    assert find_faults(folder) == []
    failed = report_of(verdict="failed", failures=["encode: is wrong", "more"])
    (folder / "report.json").write_text(json.dumps(failed))
    assert find_faults(folder) == ["encode: is wrong"]


def test_a_report_of_other_files_counts_for_nothing(folder):
    (folder / "report.json").write_text(json.dumps(report_of(files={"asr.pte": "b" * 64})))
    assert read_figures(folder, ["size", "sqnr"]) == {"size": 1000}
    assert read_held_out(folder, ["sqnr"]) == {}
    (folder / "manifest.json").unlink()
    assert read_figures(folder, ["size"]) == {}
