"""Which action starts next, by its expected duration and the available memory."""

import json
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest
import torch
from torch.export import export

from benchmarks.groups import control_group, entering
from pipeline.features.costs.costs import Name, add_costs, read_costs
from pipeline.features.costs.expectations import Expectations, remember
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.program.archive import save_programs
from pipeline.report.events import make_event
from pipeline.run.admission import Cost, choose_next
from pipeline.run.executors import system
from pipeline.store.store import Store
from tests.support.stand_in import run_stand_in

MIB = 1 << 20


@pytest.mark.parametrize(
    ("waiting", "running", "free", "chosen"),
    [
        ([(9, 50), (5, 10)], [], 100, 0),
        ([(9, 50), (5, 10)], [(7, 60)], 100, 1),  # the longest one waits for memory, others don't
        ([(9, 50), (5, 50)], [(7, 60)], 100, None),
        ([(9, 500), (5, 50)], [], 100, 0),  # more than the machine has, but nothing else runs
        ([(9, 500)], [(1, 0)], inf, 0),
        ([], [(1, 0)], 100, None),
    ],
)
def test_the_longest_starts_that_the_memory_is_there_for(waiting, running, free, chosen):
    made = [[Cost(*each) for each in own] for own in (waiting, running)]
    assert choose_next(*made, free) == chosen


def action(package, method, model="m", kind="compile"):
    return Action(kind, model, package, method, {"of": package}, LinkInputs())


def test_an_action_takes_what_it_or_its_like_took(tmp_path):
    store = Store(tmp_path)
    assert Expectations(store).expect(action("a", "f")).peak == 500 * MIB
    events = [
        make_event(action(*of), "built", seconds=seconds, peak_bytes=peak, worker=1)
        for *of, seconds, peak in (("a", "f", 2.0, 20), ("a", "g", 7.0, 70), ("b", "f", 3.0, 30))
    ]
    remember(store, [*events, make_event(action("a", "h"), "hit", worker=1, seconds=9.0)])
    expect = Expectations(store).expect
    assert expect(action("a", "f")) == Cost(2.0, 20)
    assert expect(action("new", "f")) == Cost(3.0, 30)  # the maximum of this method
    assert expect(action("new", "new")) == Cost(7.0, 70)  # the maximum of its model
    assert expect(action("a", "f", kind="link")).peak == 500 * MIB
    assert expect(action("a", "f", model="other")).peak == 500 * MIB
    (tmp_path / "costs.json").write_text(json.dumps({"costs": [["compile", "m", 1]]}))
    assert read_costs(store) == {}


def test_weights_of_a_model_that_grew_count(tmp_path):
    """An archive that is no larger than the earlier peak is not opened: here, it isn't one."""
    known, store = Name("compile", "m", "a", "f"), Store(tmp_path / "store")
    archive = tmp_path / "model.pt2"
    save_programs({"f": export(torch.nn.Linear(64, 64).eval(), (torch.ones(1, 64),))}, archive)
    inputs = SimpleNamespace(sources={"f": SimpleNamespace(archive=archive, entry="f")})
    grown = replace(action("a", "f"), inputs=inputs)
    add_costs(store, {known: Cost(2.0, 20)})
    assert Expectations(store).expect(grown) == Cost(2.0, 4 * (64 * 64 + 64))
    archive.write_bytes(b"x" * 20)
    assert Expectations(store).expect(grown) == Cost(2.0, 20)


PERFORM = """
import time
from pathlib import Path

def runs_user_code(action):
    return False

def wait(order, begun, until):
    while order.read_text().count("begins") < begun and time.monotonic() < until:
        time.sleep(0.02)

def perform(action, workspace, stages, *more):
    order, inputs = workspace.root / "order", action.inputs
    until = time.monotonic() + 30
    with open(order, "a") as file:
        print(action.package, "begins", file=file, flush=True)
        with stages.stage("lower"):
            wait(order, inputs["begun"], until)
            held = bytearray(inputs["holds"])
            held[::4096] = b"x" * len(held[::4096])
            wait(order, inputs["ends_with"], until) if inputs["ends_with"] else time.sleep(0.5)
        print(action.package, "ends", file=file, flush=True)
    return False
"""


def order_of(folder, costs, jobs, holds=0, before=(), begun=1, ends_with=0):
    """Run actions that each hold memory, and return the order in which they began.

    An action holds `holds` bytes once `begun` actions have begun. It ends after half a second, or
    once `ends_with` actions have begun, counting retries.
    """
    known = {Name("compile", "m", name, "-"): Cost(*cost) for name, cost in costs.items()}
    add_costs(Store(folder / ".store"), known)
    inputs = {"holds": holds, "begun": begun, "ends_with": ends_with}
    run_stand_in(folder, PERFORM, [("compile", name, inputs) for name in costs], jobs, before)
    return (folder / "order").read_text().splitlines()


def test_the_longest_is_the_first(tmp_path):
    seconds = {"a": 1.0, "b": 3.0, "c": 2.0}
    order = order_of(tmp_path, {name: (each, 0) for name, each in seconds.items()}, 1)
    assert [line.split()[0] for line in order[::2]] == ["b", "c", "a"]


def test_actions_that_do_not_fit_together_follow_each_other(tmp_path):
    """The small action runs at the same time as either of them."""
    much = int(0.6 * system.available_memory())
    costs = {"a": (3.0, much), "b": (2.0, much), "small": (1.0, 0)}
    order = order_of(tmp_path, costs, 2, begun=2)
    assert order.index("b begins") > order.index("a ends")
    assert order.index("small begins") < order.index("a ends")


@pytest.mark.slow
@pytest.mark.parametrize("expected", [550 * MIB, 0])
def test_two_large_actions_in_a_small_machine_are_not_killed(tmp_path, expected):
    """The system ends one of two actions that take more memory than expected."""
    costs = dict.fromkeys("ab", (1.0, expected))
    with ExitStack() as held:
        try:
            group = held.enter_context(control_group(900 * MIB))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        until = {} if expected else {"begun": 2, "ends_with": 3}
        order = order_of(tmp_path, costs, 2, 500 * MIB, entering(group, []), **until)
    in_turns = [line.split()[1] for line in order] == ["begins", "ends"] * 2
    assert in_turns == bool(expected)
    assert (len(order) == 4) == bool(expected)  # or one was retried
