"""Actions whose worker is killed: a pool on this machine, real processes."""

import math
import threading
from concurrent.futures import Future

import pytest

from pipeline.features.costs.costs import Name, add_costs
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.report.events import make_event
from pipeline.run import pool as pools
from pipeline.run.admission import Cost
from pipeline.run.performed import Report
from pipeline.store.workspace import open_workspace
from tests.support.events import read_events
from tests.support.stand_in import run_stand_in

PERFORM = """
import os, signal, time
from pathlib import Path

def runs_user_code(action):
    return False

def perform(action, workspace, stages, always, *_):
    tries = workspace.root / f"{action.package}.tries"
    with open(tries, "a") as file:
        file.write("x")
    with stages.stage("lower"):
        held = bytearray(action.inputs.get("holds", 0))
        time.sleep(0.5 if held else 0)
        if len(tries.read_text()) <= action.inputs["deaths"]:
            os.kill(os.getpid(), signal.SIGKILL)
    return False
"""


def test_a_killed_worker_costs_its_own_action_which_is_tried_twice_more(tmp_path):
    """Then it fails with its stage, the memory that it held, and the system's message."""
    deaths = {"once": 1, "twice": 2, "ever": 9, "never": 0, "last": 0}
    actions = [("compile", name, {"deaths": count}) for name, count in deaths.items()]
    actions[2][2]["holds"] = 200_000_000
    told = run_stand_in(tmp_path, PERFORM, actions)
    tries = {name: len((tmp_path / f"{name}.tries").read_text()) for name in deaths}
    assert tries == {"once": 2, "twice": 3, "ever": 3, "never": 1, "last": 1}
    assert [name for name, (error, *_) in told.items() if error] == ["ever"]
    error, stage, peak = told["ever"]
    assert stage == "lower"
    assert 200_000_000 < peak < 500_000_000
    start = "its worker process died (SIGKILL(-9)), 3 times; it held "
    assert error.startswith(start) and error.endswith("for lack of memory"), error
    events = read_events(tmp_path / "build")
    of = {name: [e for e in events if e.get("package") == name] for name in deaths}
    assert not any(e["event"] == "action-lost" for e in of["never"])
    assert [e["attempt"] for e in of["ever"] if e["event"] == "action-started"] == [1, 2, 3]
    lost = [e for e in of["ever"] if e["event"] == "action-lost"]
    assert [(e["stage"], e["signals"]) for e in lost] == [("lower", "SIGKILL(-9)")] * 3


class _Executor:
    """Runs one action at a time, which finishes one second after its start, or when it is ended."""

    slots = width = 1

    def submit(self, action, memory):
        self.future = Future()
        self.report = Report(make_event(action, "built"))
        threading.Timer(1, self.end).start()
        return self.future

    def end(self):
        if not self.future.done():
            self.future.set_result(self.report)

    def look(self):
        pass

    def free_memory(self):
        return math.inf


@pytest.mark.parametrize(("cores", "calls"), [(1, 0), (2, 1)])
def test_an_idle_core_works_once_while_others_are_waited_for(tmp_path, monkeypatch, cores, calls):
    """It works in this thread: a worker forked while another one imports would wait forever."""
    executor = _Executor()
    threads = []

    def work():
        threads.append(threading.current_thread())
        executor.end()

    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(pools, "open_executor", lambda *_: executor)
    monkeypatch.setattr(pools, "usable_cores", lambda: cores)
    pool = pools.Pool(open_workspace(tmp_path), 1, always=False)
    pool.use_idle_core(work)
    actions = [
        Action("compile", "m", name, ("forward",), {"package": name}, LinkInputs()) for name in "ab"
    ]
    assert [action.package for action, _ in pool.run(actions)] == ["a", "b"]
    assert threads == [threading.main_thread()] * calls


class _Workers:
    """Two workers whose actions end when a test says so."""

    slots = width = 2

    def __init__(self):
        self.begun = []
        self.futures = {}

    def submit(self, action, memory):
        self.begun.append(action.package)
        self.futures[action.package] = future = Future()
        return future

    def end(self, package):
        action = Action("compile", "m", package, None, {}, LinkInputs())
        self.futures[package].set_result(Report(make_event(action, "built")))

    def look(self):
        pass

    def free_memory(self):
        return math.inf


@pytest.fixture
def workers(tmp_path, monkeypatch):
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    workers = _Workers()
    monkeypatch.setattr(pools, "open_executor", lambda *_: workers)
    return workers


def _compiles(names):
    return [Action("compile", "m", name, None, {"package": name}, LinkInputs()) for name in names]


def test_what_is_added_starts_beside_what_runs_already(tmp_path, workers):
    pool = pools.Pool(open_workspace(tmp_path), 2, always=False)
    pool.add(_compiles("ab"))
    ended = []
    for package in "bcda":
        threading.Timer(0.05, workers.end, [package]).start()
        ended += [action.package for action, _ in pool.next_reports()]
        if package < "d" and package != "a":
            pool.add(_compiles(chr(ord(package) + 1)))
    assert workers.begun == ["a", "b", "c", "d"]
    assert ended == ["b", "c", "d", "a"] and not pool.is_busy


def test_a_worker_that_is_free_takes_what_waits_before_reports_are_looked_at(tmp_path, workers):
    pool = pools.Pool(open_workspace(tmp_path), 2, always=False)
    pool.add(_compiles("abc"))
    threading.Timer(0.05, workers.end, ["a"]).start()
    for _ in pool.next_reports():
        assert workers.begun == ["a", "b", "c"]
    assert pool.idle_seconds < 0.05


def test_what_most_waits_for_starts_first(tmp_path, workers):
    """A short compile with a long validation after it, and one that is longer by itself."""
    workspace = open_workspace(tmp_path)
    costs = {
        Name("compile", "m", "short", "-"): Cost(1.0, 0),
        Name("validate", "m", "short", "-"): Cost(60.0, 0),
        Name("compile", "m", "middle", "-"): Cost(2.0, 0),
        Name("compile", "m", "long", "-"): Cost(30.0, 0),
    }
    add_costs(workspace.store, costs)
    pool = pools.Pool(workspace, 2, always=False)
    pool.add(_compiles(["middle", "long", "short"]))
    for package in ("short", "long", "middle"):
        threading.Timer(0.05, workers.end, [package]).start()
        list(pool.next_reports())
    assert workers.begun == ["short", "long", "middle"]
