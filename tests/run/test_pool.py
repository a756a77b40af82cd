"""What becomes of actions whose worker is killed: a pool on this machine, real processes."""

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
    """Then it fails with its stage, the memory that it held, and what the system said."""
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
