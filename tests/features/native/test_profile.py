"""Profiles from recorded events: rows, shares and a trace; and the choice of the device."""

import json
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from pipeline.features.native.profile_record import (
    describe_profile,
    keep_profile,
    restore_profiles,
    section,
)
from pipeline.features.native.profile_rows import (
    DELEGATE,
    INSIDE,
    KERNEL,
    METHOD,
    OPERATOR,
    InstructionFacts,
    TimedEvent,
    make_rows,
    make_trace,
)
from pipeline.features.native.profile_verb import _choose_device, _parse_repeats, describe_rows
from pipeline.features.schemas.record_schemas import report_schema
from pipeline.report.render import read_report
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import open_workspace

INSTRUCTIONS = {
    0: InstructionFacts("aten::add.out", "kernel", "models/small.py:7", "net.sum"),
    1: InstructionFacts("", "XnnpackBackend", "partition 0 (models/small.py:8-9)"),
    2: InstructionFacts("", "AddSubBackend", "partition 1"),
}


def record(start, slower=0):
    """Return one execution of 1,000 ns as a runner records it: the first to end comes first."""
    return [
        TimedEvent("add.out", KERNEL, 0, start + 110, start + 190),
        TimedEvent("OPERATOR_CALL", OPERATOR, 0, start + 100, start + 200),
        TimedEvent("GEMM #1", INSIDE, 1, start + 310, start + 610),
        TimedEvent("Clamp #1", INSIDE, 1, start + 610, start + 650 + slower),
        TimedEvent("DELEGATE_CALL", DELEGATE, 1, start + 250, start + 750 + slower),
        TimedEvent("DELEGATE_CALL", DELEGATE, 2, start + 800, start + 950),
        TimedEvent("Method::execute", METHOD, 0, start, start + 1000 + slower),
    ]


RUNS = [record(5_000), record(7_000), record(9_000, slower=40)]


def test_rows_are_apart_and_sorted():
    rows = make_rows(RUNS, INSTRUCTIONS)
    nanoseconds = {(row.name, row.backend): round(row.milliseconds * 1e6) for row in rows}
    assert nanoseconds == {
        ("GEMM #1", "XnnpackBackend"): 300,
        ("(runtime, between instructions)", ""): 250,
        ("(rest of the delegate's call)", "XnnpackBackend"): 160,
        ("delegate call", "AddSubBackend"): 150,
        ("aten::add.out", "kernel"): 100,
        ("Clamp #1", "XnnpackBackend"): 40,
    }
    times = [row.milliseconds for row in rows]
    assert times == sorted(times, reverse=True)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert {row.calls for row in rows} == {1}
    assert rows[0].where == "partition 0 (models/small.py:8-9)"


def test_an_instruction_of_a_loop_counts_each_time():
    again = TimedEvent("OPERATOR_CALL", OPERATOR, 0, 5_200, 5_240)
    [row] = [row for row in make_rows([[*RUNS[0], again]], INSTRUCTIONS) if "add" in row.name]
    assert row.calls == 2 and row.milliseconds == pytest.approx(140e-6)


def test_the_table_has_the_longest_rows():
    rows = make_rows(RUNS, INSTRUCTIONS)
    head, _, first, *_ = describe_rows(rows)
    assert head.split()[:4] == ["operator", "backend", "calls", "ms"]
    assert "GEMM #1" in first and "30.0 %" in first and first.endswith("(models/small.py:8-9)")
    *_, last = describe_rows(rows * 5)
    assert last == "and 5 more rows, 70.0 % in total"


def test_the_table_fits_a_terminal():
    rows = make_rows(RUNS, INSTRUCTIONS)
    whole = list(describe_rows(rows))
    widest = max(map(len, whole))
    assert list(describe_rows(rows, widest)) == whole
    for width in (widest - 1, widest - 10):
        cut = list(describe_rows(rows, width))
        assert max(map(len, cut)) == width and len(cut) == len(whole)
    assert max(map(len, describe_rows(rows, 10))) < widest  # as narrow as names allow


def test_a_profile_stays_while_the_files_are_the_same(built):
    """After the run, files that a validation rewrote have it again."""
    workspace = open_workspace(built.root)
    record = describe_profile("native", 3, 0.001, make_rows(RUNS, INSTRUCTIONS))
    assert keep_profile(workspace, "pair", "encode", record)
    folder = workspace.logs / "pair" / "profile"
    (folder / "embed.profile.json").write_text("damaged")
    (folder / "absent.profile.json").write_bytes((folder / "encode.profile.json").read_bytes())
    path = workspace.package("pair") / "report.json"
    anew = json.loads(path.read_text())
    del anew["profiles"]
    path.write_text(json.dumps(anew))
    validated = [SimpleNamespace(kind="validate", package="pair")]
    restore_profiles(workspace, validated, {})
    assert read_report(workspace, "pair")["profiles"] == {"encode": record}
    assert record["modules"] == {"": 0.0009, "net.sum": 0.0001}
    assert "GEMM #1" in built.bytes_of("pair", "report.html").decode()
    path.write_text(json.dumps(anew))
    kept = json.loads((folder / "encode.profile.json").read_text())
    kept["files"]["pair.pte"] = "0" * 64  # as after a link that changes the package
    (folder / "encode.profile.json").write_text(json.dumps(kept))
    restore_profiles(workspace, validated, {})
    assert "profiles" not in read_report(workspace, "pair")


def test_a_report_has_the_latest_profile_of_a_method(built):
    """It is rendered at once, and doesn't count as an edit to the next run; a profile of other
    bytes isn't shown."""
    workspace = open_workspace(built.root)
    for device in ("native", "qemu:max"):
        record = describe_profile(device, 3, 0.001, make_rows(RUNS, INSTRUCTIONS))
        assert keep_profile(workspace, "pair", "encode", record)
    report = read_report(workspace, "pair")
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    assert report["profiles"]["encode"]["device"] == "qemu:max"
    [table] = [part for part in section(report).parts if not isinstance(part, str)]
    assert table.title == "encode on qemu:max: 0.001 ms a call, the median of 3"
    shares = [row["share"].bar for row in table.rows]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1)
    assert "GEMM #1" in built.bytes_of("pair", "report.html").decode()
    assert built.doit() == 0 and built.output.startswith("up to date"), built.output
    manifest = built.root / "build" / "pair" / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["files"]["pair.pte"]["digest"] = "0" * 64
    manifest.write_text(json.dumps(facts))
    assert not keep_profile(workspace, "pair", "encode", record)
    assert not section({"methods": []}).parts


def test_a_trace_nests_what_lies_in_a_call():
    trace = make_trace(RUNS, INSTRUCTIONS, "small/f on native", {"device": "native"})
    tracks = {event["tid"]: event["args"] for event in trace["traceEvents"] if event["ph"] == "M"}
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 21 and {*tracks} == {1}
    assert events[0]["name"] == "Method::execute" and events[0]["ts"] == 0
    open_until = []
    for event in events:  # none ends after its enclosing event
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + 1e-9, event
        open_until.append(end)
    assert trace["otherData"] == {"device": "native"}


def test_events_of_another_clock_have_a_track_of_their_own():
    foreign = TimedEvent("shader", INSIDE, 1, 3, 9)
    trace = make_trace([[*RUNS[0], foreign]], INSTRUCTIONS, "", {})
    [event] = [event for event in trace["traceEvents"] if event["name"] == "shader"]
    assert event["tid"] == 2 and trace["traceEvents"][-1]["args"]["name"].startswith("delegates'")


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        ((), "native"),
        (("qemu:cortex-a72", "native"), "native"),
        (("plugin", "qemu:cortex-a53", "qemu:max"), "qemu:cortex-a53"),
    ],
)
def test_the_device_that_is_taken_unless_one_is_named(named, chosen, tmp_path):
    assert _choose_device("", named, tmp_path) == chosen


def test_what_is_refused():
    with pytest.raises(PipelineError, match=r"no device 'natve' .* did you mean 'native'"):
        _choose_device("natve", (), Path("/"))
    for text in ("0", "-3", "1001", "2.5"):
        with pytest.raises(PipelineError, match="a whole number from 1 to 1000, not"):
            _parse_repeats(text)
    assert _parse_repeats("") == 20 and _parse_repeats("7") == 7
