"""New weights without lowering, through doit: what may be built this way, and what must not be."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.export import export
from torch.export.pt2_archive._package import package_pt2

from pipeline.features.cache.earlier_results import earlier_keys
from pipeline.store.digest import hash_file
from pipeline.store.store import Store
from tests.support.bench import REPOSITORY, Bench
from tests.support.events import read_events

XNNPACK, PORTABLE = {"partitioners": ["xnnpack"]}, {"partitioners": []}


class Small(nn.Module):
    """Folded batch norm, a portable gather from a table that stays a separate blob in files, a
    layer norm and two linear layers."""

    def __init__(self, tied=False):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.table, self.scale = nn.Embedding(20_000, 4), nn.LayerNorm(4)
        self.head, self.tail = nn.Linear(4, 4), nn.Linear(4, 4)
        if tied:
            self.tail.weight = self.head.weight

    def forward(self, x, i):
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.tail(self.head(self.scale(y + self.table(i))))


def example():
    return torch.randn(1, 3, 6, 6), torch.tensor([1])


def write(bench, seed, change=lambda model: None, tied=False):
    """Write the model's archive with weights drawn from a seed."""
    torch.manual_seed(seed)
    model = Small(tied).eval().requires_grad_(False)
    for tensor in [*model.parameters(), model.norm.running_mean, model.norm.running_var]:
        tensor.uniform_(0.1, 1.0)
    change(model)
    program = export(model, example())
    (bench.root / "models").mkdir(exist_ok=True)
    path = bench.root / "models" / "small.pt2"
    package_pt2(str(path), exported_programs={"run": program, "again": program})


def start(root, methods, **config):
    bench = Bench(root)
    (root / "partition_configs").mkdir(parents=True)
    (root / "dodo.py").write_text("from pipeline.tasks import *\n")
    document = {"model": "small", "methods": methods, **config}
    (root / "partition_configs" / "small.yaml").write_text(json.dumps(document))
    return bench


def lower(bench):
    """Return the outcome of each action."""
    assert bench.doit("lower") == 0, bench.output
    run = json.loads((bench.root / "build" / "run.json").read_text())
    return {each["method"] or each["kind"]: each["outcome"] for each in run["actions"]}


def records(store):
    return [store.get(digest) for digest, _ in earlier_keys(store, "refit")]


METHODS = ("run", "again")
REFIT = dict.fromkeys([*METHODS, "link"], "refit")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A package whose recipes were learned by its build."""
    bench = start(tmp_path_factory.mktemp("refit") / "w", {"run": XNNPACK, "again": PORTABLE})
    write(bench, 1)
    assert set(lower(bench).values()) == {"built"}
    assert [entry.result["proven"] for entry in records(Store(bench.store))] == [True, True]
    return bench


def test_new_weights_are_exchanged_and_a_rebuild_gives_the_same(learnt):
    write(learnt, 3)
    assert learnt.doit("explain", "small") == 0
    assert "only weights changed: they are replaced without lowering" in learnt.output
    assert lower(learnt) == REFIT
    assert "refit" in learnt.output
    timeline = (learnt.root / "build" / "timeline.json").read_text()
    assert '"refit"' in timeline
    assert learnt.doit("rebuild") == 0, learnt.output


WITHOUT_TORCH = """
import sys
from pathlib import Path

from pipeline.plan.plan import Plan
from pipeline.plan.requests import write_request
from pipeline.run.worker import run
from pipeline.store.workspace import open_workspace

plan = Plan(open_workspace(Path.cwd()))
for action in (*plan.compiles("small"), plan.link("small")):
    request = write_request(action, plan.workspace.root)
    print(run(request, plan.workspace, False).event.outcome)
print({"torch", "executorch"} & sys.modules.keys())
"""


def test_nothing_of_it_imports_torch(learnt):
    write(learnt, 30)
    environment = {**learnt.environment, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        cwd=learnt.root,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["refit"] * 3 + ["set()"], done.stderr


def test_one_worker_at_a_time_is_none(learnt):
    """The building process does the work itself, and moves the linked file into place."""
    write(learnt, 31)
    command = [sys.executable, "-X", "importtime", *learnt.command("-n", "1", "lower")[1:]]
    environment = {**learnt.environment, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=learnt.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {a["method"] or a["kind"]: a["outcome"] for a in learnt.actions()} == REFIT
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "numpy" in imported and not {"torch", "joblib"} & imported
    events = read_events(learnt.root / "build")
    told = [(e["event"], e["method"] or e["kind"]) for e in events if "method" in e]
    ways = "action-started", "action-ended"
    told = [each for each in told if each[0] in ways]
    assert told == [(way, told[2 * n][1]) for n in range(3) for way in ways]  # one at a time
    state = json.loads((learnt.root / "build" / ".state" / "small.json").read_text())
    result = Store(learnt.store).get(state["record"]["link"]["action"]).result
    assert result["joined"]
    whole = result["files"]["small.pte"]
    assert hash_file(learnt.root / "build" / "small" / "small.pte") == whole
    assert not list((learnt.store / "tmp").glob("*"))


CHANGED = """
import os
from pathlib import Path

from pipeline.plan.plan import Plan
from pipeline.run import worker
from pipeline.features.refit import refit
from pipeline.store.workspace import open_workspace

archive = Path("models/small.pt2")
done = refit.refit


def edit(*given):
    result, before = done(*given), archive.stat()
    with open(archive, "r+b") as file:
        file.seek(before.st_size // 2)
        file.write(os.urandom(8))
    os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))
    print("edit")
    return result


def cut(*given):
    os.truncate(archive, 100)
    print("cut")
    return done(*given)


plan = Plan(open_workspace(Path.cwd()))
refit.refit = {way}
action = next(iter(plan.compiles("small")))
print(worker.run_here(action, plan.workspace, lambda: None))
print(plan.workspace.store.get(action.digest))
"""


@pytest.mark.parametrize("way", ["edit", "cut"])
def test_an_archive_that_changes_meanwhile_gives_nothing(learnt, way):
    write(learnt, 32 + len(way))
    done = subprocess.run(
        [sys.executable, "-c", CHANGED.format(way=way)],
        cwd=learnt.root,
        env={**learnt.environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [way, "None", "None"], done.stderr


CHANCE = {
    "two are equal now": lambda model: model.tail.bias.copy_(model.head.bias),
    "a weight is its own transpose": lambda model: model.head.weight.fill_(0.5),
}


@pytest.mark.slow
def test_chance_equality_is_a_miss_that_says_so(learnt):
    write(learnt, 4, CHANCE["two are equal now"])
    assert learnt.doit("explain", "small") == 0
    assert "is lowered, since two stored tensors that used to differ are now equal" in learnt.output
    assert set(lower(learnt).values()) == {"built"}
    assert learnt.doit("rebuild") == 0, learnt.output
    write(learnt, 5)  # and back: equal before, different now
    assert lower(learnt)["run"] == "built"
    write(learnt, 6)  # learned immediately
    assert lower(learnt) == REFIT


def test_values_that_are_their_own_transposes(learnt):
    write(learnt, 8, CHANCE["a weight is its own transpose"])
    lower(learnt)
    assert learnt.doit("rebuild") == 0, learnt.output


def test_other_graph_is_no_new_weights(learnt):
    """Tied weights make another graph, although all shapes are the same."""
    write(learnt, 9, tied=True)
    assert set(lower(learnt).values()) == {"built"}


UNKNOWN = {
    "another backend": ({"partitioners": ["vulkan"]}, {}, "payloads of vulkan contain weights"),
    "lines": (PORTABLE, {"emit": {"emit_stacktrace": True}}, "source lines"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_lowered(tmp_path, name):
    method, config, why = UNKNOWN[name]
    bench = start(tmp_path / "w", {"run": method, "again": method}, **config)
    for seed in (1, 2, 3):
        write(bench, seed)
        if seed == 3:
            assert bench.doit("explain", "small/run") == 0
            assert why in bench.output
        assert lower(bench)["run"] == "built"


@pytest.mark.slow
def test_a_recipe_that_is_missed_each_time_is_not_learnt_again(tmp_path):
    """Partitions are then found in the store, as without any recipe."""
    bench = start(tmp_path / "w", {"run": PORTABLE, "again": PORTABLE})
    write(bench, 1)
    lower(bench)
    store = Store(bench.store)
    for entry in records(store):
        store.put_result(entry.key, {**entry.result, "misses": 3})
    write(bench, 3, CHANCE["two are equal now"])
    lower(bench)
    found = [(each.result["proven"], each.result["misses"]) for each in records(store)]
    assert found == [(True, 4), (True, 4)]
    write(bench, 4)
    assert lower(bench)["run"] == "refit"  # it counts from the start again
    assert {each.result["misses"] for each in records(store)} == {0}
