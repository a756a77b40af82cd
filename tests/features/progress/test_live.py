"""The display while actions run, and when it falls back to plain lines."""

import io
import re
import time

import pytest

from pipeline.cli.progress import progress_on, terminal_width
from pipeline.features.progress import long_actions
from pipeline.features.progress.live import Tally, clock, is_live
from pipeline.features.progress.long_actions import LongActions
from pipeline.plan.actions import Action
from pipeline.report.events import Event
from pipeline.run.action_status import ActionStatus
from tests.support.outlook import Outlook

ACTIONS = [Action("compile", "m", "p", name, {}, None) for name in ("a", "b", "c")]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def outlook(under_way, seconds=10.0):
    return Outlook(under_way, seconds, jobs=2)


def ended(method, outcome="built"):
    return Event("compile", "p", method, "m", outcome, seconds=1.25)


def test_a_tally_knows_what_runs_and_how_long_it_takes_yet():
    under_way = {"a": ActionStatus("to edge"), "b": ActionStatus("quantize", 12, 64)}
    tally = Tally(ACTIONS, outlook(under_way))
    running = tally.running(100.0)
    assert [(a.method, status, seconds) for a, status, seconds in running] == [
        ("a", ActionStatus("to edge"), 0.0),
        ("b", ActionStatus("quantize", 12, 64), 0.0),
    ]
    assert tally.remaining(tally.running(104.0)) == (6 + 6 + 10) / 2
    assert tally.remaining(tally.running(130.0)) == 10  # of the action that hasn't begun
    tally.count(ended("a", "failed"))
    assert [a.method for a, _, _ in tally.running(131.0)] == ["b"]
    assert (tally.finished, tally.failed) == (1, 1)
    assert Tally(ACTIONS, outlook({}, None)).remaining([]) is None  # nothing is known about them


def test_a_run_is_counted_as_a_whole(bench):
    """It includes actions that no worker has yet; linked packages need no more methods."""
    from pipeline.plan.plan import Plan
    from pipeline.plan.tasks import ActionTask
    from pipeline.store.workspace import open_workspace

    plan = Plan(open_workspace(bench("pair").root))
    selected = [ActionTask(plan, kind, "pair", "pair") for kind in ("link", "validate")]
    events = [Event("export", None, None, "pair", "up-to-date")]
    given = [Action("compile", "pair", "pair", "decode", {}, None)]
    tally = Tally(given, Outlook({}, 3.0, 2, selected, events))
    assert tally.counts() == (1, 5)
    assert [task.kind for task in tally.ahead()] == ["compile", "link", "validate"]
    assert tally.remaining([]) == 9.0  # one compile, the link and the validation
    tally.count(Event("compile", "pair", "decode", "pair", "built"))
    events.append(Event("compile", "pair", "decode", "pair", "built"))
    assert tally.counts() == (2, 5)
    events.append(Event("link", "pair", None, "pair", "hit"))
    assert tally.counts() == (3, 4)


def test_a_terminal_shows_each_action_with_stage_time_and_what_it_took_before(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    stream = Terminal()
    stream.unguarded = stream.write
    under_way = {"b": ActionStatus("quantize", 12, 64)}
    with progress_on(stream, ACTIONS, outlook(under_way)) as show:
        show(ended("a"))
        time.sleep(0.3)  # it is redrawn meanwhile
        stream.write("lower:p failed: [a] reason\n")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "built    compile p/a 1.2 s" in shown
    assert re.search(r"[\r\n]lower:p failed: \[a\] reason\n", shown), shown
    batch = r"1 of 3 done \| 0:\d\d, about 0:\d\d left \| 1 of 2 workers busy"
    assert re.search(batch, shown), shown
    assert re.search(r"  compile p/b  0:\d\d of about 0:10  quantize 12/64", shown), shown


@pytest.mark.parametrize(
    ("stream", "given", "live"),
    [
        (Terminal, {"TERM": "xterm"}, True),
        (Terminal, {"TERM": "xterm", "CI": "true"}, False),
        (Terminal, {"TERM": "dumb"}, False),
        (Terminal, {}, False),
        (io.StringIO, {"TERM": "xterm"}, False),
    ],
)
def test_only_terminals_are_redrawn(monkeypatch, stream, given, live):
    for name in ("TERM", "CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    made = stream()
    made.unguarded = made.write
    assert is_live(made) is live
    with progress_on(made, ACTIONS, outlook({})) as show:
        show(ended("a"))
    plain = "built    compile p/a" + " " * 37 + "1.2 s\n"
    assert (made.getvalue() == plain) is not live


def test_a_log_says_at_growing_intervals_what_is_still_running():
    statuses = {"a": ActionStatus("to edge")}
    running = LongActions(ACTIONS, outlook(statuses))
    lines = {now: list(running.look(now)) for now in range(5, 500, 5)}
    assert {now: shown for now, shown in lines.items() if shown} == {
        5 + seconds: [f"still running: compile p/a ({seconds} s, to edge)"]
        for seconds in (60, 120, 240, 480)
    }
    statuses.clear()  # it ended
    assert not list(running.look(600))
    statuses["a"] = ActionStatus("to edge")  # and runs again
    assert not list(running.look(605))
    assert list(running.look(665))


def test_a_log_gets_these_lines_while_actions_run(monkeypatch):
    monkeypatch.setattr(long_actions, "_FIRST_SECONDS", 0.02)
    monkeypatch.setattr(long_actions, "_SECONDS_BETWEEN_LOOKS", 0.01)
    stream = io.StringIO()
    with progress_on(stream, ACTIONS, outlook({"b": ActionStatus("quantize")})) as show:
        time.sleep(0.2)
        show(ended("b"))
    first, *_, last = stream.getvalue().splitlines()
    assert first == "still running: compile p/b (0 s, quantize)"
    assert last.startswith("built    compile p/b")


def test_no_color_is_heeded(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    for value, colours in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        stream = Terminal()
        stream.unguarded = stream.write
        with progress_on(stream, ACTIONS, outlook({})) as show:
            show(ended("a"))
        assert ("\x1b[32m" in stream.getvalue()) is colours


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (75, "1:15"), (3700, "1:01:40")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("given", "width"), [({"COLUMNS": "60"}, 60), ({"COLUMNS": "0"}, None), ({}, None)]
)
def test_lines_outside_of_terminals_are_as_long_as_they_like(given, width):
    assert terminal_width(io.StringIO(), given) == width
