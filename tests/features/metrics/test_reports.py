"""Metric limits in reports: JUnit cases, and rows for the ones that failed."""

from junitparser import Failure, JUnitXml, Skipped

from pipeline.features.gates.section import section
from pipeline.report.elements import DataTable
from pipeline.report.render import render
from tests.features.pages.test_markdown import method, validation

ROW = {
    "metric": "quality.wer",
    "method": "decode",
    "entry": "quality.wer",
    "kind": "max",
    "limit": 0.08,
    "place": "partition_configs/asr.yaml:9",
    "verdict": "failed",
    "sentence": "metric quality.wer: 0.121 (0.1 to 0.14) on 300 samples, at most 0.08 allowed",
    "value": 0.121,
    "interval": [0.1, 0.14],
    "source": 0.12,
    "drop": -0.001,
    "drop_interval": [-0.01, 0.01],
    "samples": 300,
    "methods": ["decode"],
}


def find_cases(*rows):
    failures = [row["sentence"] for row in rows if row["verdict"] == "failed"]
    report = {**validation(method("decode")), "metrics": list(rows)}
    made = render({**report, "ok": not failures, "failures": failures})
    (suite,) = JUnitXml.fromstring(made["junit.xml"])
    cases = {(case.classname, case.name): case for case in suite}
    return cases, made["report.md"].decode()


def test_each_limit_of_a_metric_is_a_case():
    rise = {**ROW, "kind": "max_rise", "limit": 0.005, "verdict": "not judged", "sentence": "few"}
    cases, page = find_cases(ROW, rise)
    failed = cases["seq2seq.pte.decode", "metric quality.wer max"]
    (failure,) = failed.result
    assert isinstance(failure, Failure) and failure.message.startswith(ROW["sentence"])
    assert failed.system_out == (
        "package 0.121, source 0.12, drop -0.001, limit 0.08, 300 samples\n"
        "partition_configs/asr.yaml:9"
    )
    (skipped,) = cases["seq2seq.pte.decode", "metric quality.wer max_rise"].result
    assert isinstance(skipped, Skipped) and skipped.message == "not judged: few"
    assert not cases["seq2seq.pte", "package"].result  # reported only once
    assert "| decode | partition_configs/asr.yaml:9 |" in page.replace("`", "")


def test_limits_of_metrics_stand_among_the_gates():
    rise = {**ROW, "kind": "max_rise", "limit": 0.005, "verdict": "not judged", "sentence": "few"}
    unlimited = {**ROW, "limit": None, "verdict": "", "sentence": ""}
    report = {**validation(method("decode")), "metrics": [unlimited, rise, ROW]}
    made = section(report)
    (table,) = (part for part in made.parts if isinstance(part, DataTable) and part.rows)
    columns = ("gate", "verdict", "of", "figure", "limit")
    rows = [[str(getattr(row[name], "text", row[name])) for name in columns] for row in table.rows]
    assert made.title == "Gates" and rows == [
        ["quality.wer max", "failed", "decode", "0.121", "at most 0.08"],
        ["quality.wer max_rise", "not judged", "decode", "0.001", "at most 0.005"],
    ]


def test_a_metric_without_a_limit_or_without_a_run_is_a_case_too():
    unlimited = {**ROW, "limit": None, "verdict": "", "sentence": ""}
    del unlimited["kind"]
    unrun = {name: ROW[name] for name in ("metric", "method", "entry")}
    unrun |= {"metric": "top1", "limit": None, "verdict": "not run", "sentence": "no time"}
    cases, _ = find_cases(unlimited, unrun)
    assert not cases["seq2seq.pte.decode", "metric quality.wer"].result
    (skipped,) = cases["seq2seq.pte.decode", "metric top1"].result
    assert skipped.message == "not run: no time"
