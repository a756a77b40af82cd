"""The files that a run leaves for people: pages, JUnit, a summary, and a timeline."""

import json
import shutil

import jsonschema
from junitparser import JUnitXml

from pipeline.features.schemas.record_schemas import report_schema
from pipeline.report.render import read_report
from pipeline.store.workspace import open_workspace

OVER_ALL = {"index.html", "junit.xml", "summary.md", "timeline.json"}


def build_of(bench):
    return bench.root / "build"


def trace_of(bench):
    return json.loads((build_of(bench) / "timeline.json").read_text())["traceEvents"]


def actions_of(bench):
    """Return the events of actions, without those of their stages."""
    return [e for e in trace_of(bench) if e.get("args", {}).get("kind")]


def test_a_run_leaves_reports_and_its_timeline(built):
    assert {path.name for path in build_of(built).iterdir() if path.is_file()} >= OVER_ALL
    page = built.bytes_of("pair", "report.html").decode()
    assert "<h1>pair" in page and "passed</span>" in page
    assert built.bytes_of("pair", "report.md").startswith(b"# pair: passed")
    suites = JUnitXml.fromstring((build_of(built) / "junit.xml").read_bytes())
    assert [(suite.name, suite.failures) for suite in suites] == [("pair", 0)]
    summary = (build_of(built) / "summary.md").read_text()
    assert summary.startswith("# 1 package: 1 passed")
    record = read_report(open_workspace(built.root), "pair")
    jsonschema.Draft202012Validator(report_schema()).validate(record)


def test_the_timeline_has_every_action_with_its_stages(built):
    events = actions_of(built)
    assert {event["name"] for event in events} == {
        "export pair",
        "compile pair/encode",
        "compile pair/decode",
        "link pair",
        "validate pair",
    }
    assert {event["args"]["outcome"] for event in events} == {"built"}
    begun = {event["name"]: event["ts"] for event in events}
    ended = {event["name"]: event["ts"] + event["dur"] for event in events}
    assert ended["export pair"] <= begun["compile pair/encode"]
    assert max(ended["compile pair/encode"], ended["compile pair/decode"]) <= begun["link pair"]
    assert ended["link pair"] <= begun["validate pair"]
    stages = {event["name"] for event in trace_of(built) if event.get("cat") == "stage"}
    assert {"import", "lower", "emit", "link", "run", "report"} <= stages
    assert {event["tid"] for event in events} <= {1, 2}


def test_regions_of_graphs_are_in_manifest_and_page(built):
    manifest = json.loads(built.bytes_of("pair", "manifest.json"))
    for method in manifest["methods"].values():
        counts = method["delegation"]
        assert sum(each["nodes"] for each in counts["segments"]) == counts["nodes"]
    assert b"Regions of the graph" in built.bytes_of("pair", "report.html")


def test_a_run_with_nothing_to_do_leaves_them_alone(built):
    before = {n: (build_of(built) / n).stat().st_mtime_ns for n in OVER_ALL}
    assert built.doit() == 0
    assert built.output.startswith("up to date")
    assert before == {n: (build_of(built) / n).stat().st_mtime_ns for n in OVER_ALL}


def test_what_comes_from_the_store_is_on_the_timeline(built):
    shutil.rmtree(build_of(built))
    assert built.doit() == 0, built.output
    events = actions_of(built)
    assert {(e["name"], e["ph"], e["args"]["outcome"]) for e in events} >= {
        ("link pair", "i", "hit"),
        ("validate pair", "i", "hit"),
    }
    assert built.bytes_of("pair", "report.html").startswith(b"<!doctype html>")


def test_reports_are_rendered_again_and_stay_current(built):
    page = built.bytes_of("pair", "report.html")
    (build_of(built) / "pair" / "report.html").unlink()
    (build_of(built) / "index.html").unlink()
    assert built.doit("report") == 0
    assert "build/pair/report.html" in built.output and "build/index.html" in built.output
    assert built.bytes_of("pair", "report.html") == page
    assert built.doit() == 0 and built.output.startswith("up to date")
    assert built.doit("report", "pear") == 1
    assert "no package 'pear'; did you mean 'pair'?" in built.output


def test_a_package_that_cannot_be_built_is_in_the_reports(built):
    built.edit("partition_configs/pair.yaml", "model: pair", "model: pear")
    assert built.doit() == 1
    summary = (build_of(built) / "summary.md").read_text()
    assert summary.startswith("# FAILED: 1 package: 1 not built") and "pear" in summary
    suites = JUnitXml.fromstring((build_of(built) / "junit.xml").read_bytes())
    assert suites.failures == 1
    assert "not built" in (build_of(built) / "index.html").read_text()
