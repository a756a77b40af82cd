"""When workers start, and when tasks do."""

import shutil
from dataclasses import replace

import pytest

from pipeline.cli.ahead import start_ahead
from pipeline.run.executors import local
from pipeline.store.workspace import open_workspace
from tests.support.bench import REPOSITORY
from tests.support.events import read_events
from tests.support.processes import gone


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    return open_workspace(tmp_path)


@pytest.mark.parametrize(
    ("known", "starts"),
    [("nothing", 2), ("a result", 0), ("a package", 0), ("a cluster", 0), ("-a", 2)],
)
def test_workers_start_ahead_where_nothing_was_built(workspace, monkeypatch, known, starts):
    started = []
    monkeypatch.setattr(local, "start_ahead", lambda workspace, workers: started.append(workers))
    workspace.store.put(b"a blob alone is no result")
    if known in ("a result", "-a"):
        workspace.store.put_result({"kind": "reads"}, {"runs": [], "last": "0" * 64})
    elif known == "a package":
        workspace.build.mkdir()
        workspace.write_state("p", {})
    elif known == "a cluster":
        workspace = replace(workspace, executor="tcp://127.0.0.1:1")
    start_ahead(workspace, 2, always=known == "-a")
    assert sum(started) == starts


def test_workers_that_started_ahead_are_the_executors(workspace):
    local.start_ahead(workspace, 1)
    local.start_ahead(workspace, 2)  # one more
    (ahead,) = local._ahead
    assert len(ahead) == 2
    executor = local.LocalExecutor(workspace, 2, False)
    assert executor._processes is ahead and not local._ahead
    numbers = [number for each in ahead._processes for number in each._processes]
    assert len(numbers) == 2
    executor.close()
    assert gone({*numbers}, within=2)


def test_workers_that_nobody_took_end(workspace):
    local.start_ahead(workspace, 1)
    numbers = [n for each in local._ahead[0]._processes for n in each._processes]
    local._close_ahead()
    assert gone({*numbers}, within=2) and not local._ahead


UNTIL_THE_OTHERS_ARE_VALIDATED = """
import os
import time

for _ in range(300):
    if all(os.path.exists(f"build/{name}/report.json") for name in ("one", "many")):
        break
    time.sleep(0.2)
"""


@pytest.mark.slow
def test_a_long_export_holds_nothing_up_that_does_not_need_it(bench):
    """There are no waves: ready tasks run to the end meanwhile, and no worker is idle."""
    bench = bench("archives")
    for name in ("pair.py", "_parts.py"):
        shutil.copy(REPOSITORY / "tests/samples/pair/models" / name, bench.root / "models")
    model = bench.root / "models" / "pair.py"
    model.write_text(UNTIL_THE_OTHERS_ARE_VALIDATED + model.read_text())
    config = REPOSITORY / "tests/samples/pair/partition_configs/pair.yaml"
    shutil.copy(config, bench.root / "partition_configs")
    assert bench.process("-n", "2") == 0, bench.output
    *events, last = read_events(bench.root / "build")
    ended = [
        (event["kind"], event["package"]) for event in events if event["event"] == "action-ended"
    ]
    export = ended.index(("export", None))
    for package in ("one", "many"):
        assert ended.index(("validate", package)) < export
    assert last["idle_seconds"] < 1
