"""The trace of a run, as Perfetto reads it."""

from pipeline.features.overview.overview import read_timeline
from pipeline.features.timeline.trace import make_trace, write_timeline
from pipeline.report.events import Event
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

T = 1_700_000_000.0


def span(kind="compile", method="run", worker=7, start=0.0, end=1.0, **more):
    times = {"start": T + start, "seconds": end - start}
    return Event(kind, "pack", method, "model", "built", worker=worker, **times, **more)


def spans_of(made, phase="X"):
    return [e for e in make_trace(made)["traceEvents"] if e["ph"] == phase]


def test_time_begins_with_the_run_and_is_in_microseconds():
    first, second = spans_of([span(start=2, end=3.5), span(start=4, end=4.25)])
    assert (first["ts"], first["dur"]) == (0, 1_500_000)
    assert (second["ts"], second["dur"]) == (2_000_000, 250_000)


def test_an_action_says_what_it_was():
    (event,) = spans_of([span(peak_bytes=5, error="no")])
    assert event["name"] == "compile pack/run" and event["cat"] == "compile"
    assert event["args"] == {
        "kind": "compile",
        "package": "pack",
        "method": "run",
        "model": "model",
        "outcome": "built",
        "peak_bytes": 5,
        "error": "no",
    }


def test_stages_lie_within_their_action():
    outer, inner = spans_of([span(stages=[("lower", 0.25, 0.75)])])
    assert inner["name"] == "lower" and inner["cat"] == "stage"
    assert outer["tid"] == inner["tid"]
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_workers_are_lanes_and_a_new_one_takes_the_lane_of_one_that_ended():
    spans = [
        span(worker=1, start=0, end=2),
        span(worker=2, start=0.5, end=5),
        span(worker=3, start=3, end=4),
        span(worker=1, start=2, end=2.5),
    ]
    lanes = {(e["ts"], e["tid"]) for e in spans_of(spans)}
    assert lanes == {(0, 1), (500_000, 2), (3_000_000, 1), (2_000_000, 1)}
    names = {e["tid"]: e["args"]["name"] for e in spans_of(spans, phase="M")}
    assert names == {1: "worker 1", 2: "worker 2"}


def test_what_came_from_the_store_has_a_lane_of_its_own():
    made = [span(), Event("link", "pack", None, "model", "hit", start=T - 1)]
    (hit,) = spans_of(made, phase="i")
    assert (hit["name"], hit["tid"], hit["ts"]) == ("link pack", 0, 0)
    assert spans_of(made)[0]["ts"] == 1_000_000
    names = {e["tid"]: e["args"]["name"] for e in spans_of(made, phase="M")}
    assert names == {0: "store", 1: "worker 1"}


def test_actions_that_took_no_time_are_not_on_the_timeline():
    assert make_trace([Event("link", "pack", None, "model", "up-to-date")])["traceEvents"] == []


def test_an_arrow_leads_from_an_action_of_the_longest_chain_to_the_next():
    link = Event("link", "pack", None, "model", "built", start=T + 3, seconds=1.0, worker=8)
    made = [span(end=2), span(method="other", end=0.5, worker=8), link]
    begin, end = spans_of(made, phase="s") + spans_of(made, phase="f")
    assert (begin["tid"], begin["ts"], end["tid"], end["ts"]) == (1, 1_999_999, 2, 3_000_000)
    assert begin["id"] == end["id"] and end["bp"] == "e"


def test_a_timeline_is_read_as_it_was_written(tmp_path):
    space = Workspace(tmp_path, Store(tmp_path / "store"), 1)
    space.build.mkdir()
    assert read_timeline(space) is None
    write_timeline(space, [span()], {"run": {}})
    made = make_trace([span()])
    made["otherData"]["caches"] = {"run": {}}
    assert read_timeline(space) == made
    (space.build / "timeline.json").write_text("[1]")
    assert read_timeline(space) is None
