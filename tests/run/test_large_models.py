"""Two actions of a large model run one after the other if there is memory for only one; the test
sets the amount of memory."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from torch.export import export

from pipeline.features.costs.costs import Name, add_costs
from pipeline.features.costs.expectations import Expectations, weigh
from pipeline.features.exporters.shared_members import sharing_members
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.program.archive import save_programs
from pipeline.program.sources import MethodSource
from pipeline.report.events import make_event
from pipeline.run import pool as pools
from pipeline.run.admission import Cost
from pipeline.run.performed import Report
from pipeline.store.store import Store
from pipeline.store.workspace import open_workspace

MIB = 1 << 20
WEIGHTS = 4 * MIB


class _Inputs(LinkInputs):
    """Inputs of an action with sources, like those of a compile action."""

    def __init__(self, *sources: MethodSource) -> None:
        super().__init__()
        object.__setattr__(self, "sources", {source.entry: source for source in sources})


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two methods that share 4 MiB of weights."""
    linear = torch.nn.Linear(1024, 1024, bias=False).requires_grad_(False)
    programs = {name: export(linear, (torch.ones(1, 1024),)) for name in ("decode", "prefill")}
    path = tmp_path_factory.mktemp("models") / "decoder.pt2"
    with sharing_members():
        save_programs(programs, str(path))
    return path


def _compile(archive: Path, *methods: str) -> Action:
    sources = [MethodSource(archive, method, "0" * 64) for method in methods]
    return Action("compile", "m", "p", methods[0], {"of": methods}, _Inputs(*sources))


def test_weights_that_methods_share_count_once(archive: Path) -> None:
    sources = [MethodSource(archive, method, "0" * 64) for method in ("decode", "prefill")]
    assert weigh(sources[:1]) == weigh(sources) == WEIGHTS
    assert weigh([MethodSource(archive.with_name("none.pt2"), "decode", "0" * 64)]) == 0


def test_an_action_is_expected_to_take_its_weights(tmp_path: Path, archive: Path) -> None:
    store, action = Store(tmp_path), _compile(archive, "decode", "prefill")
    assert Expectations(store).expect(action).peak == 500 * MIB + 3 * WEIGHTS
    # Its cost when the model was smaller.
    add_costs(store, {Name("compile", "m", "p", "decode"): Cost(7.0, MIB)})
    assert Expectations(store).expect(action) == Cost(7.0, WEIGHTS)
    add_costs(store, {Name("compile", "m", "p", "decode"): Cost(7.0, 90 * MIB)})
    assert Expectations(store).expect(action) == Cost(7.0, 90 * MIB)


class _Workers:
    """Two workers that share so many bytes, whose actions end as soon as they are polled."""

    slots = width = 2

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.most = 0
        self.under_way: dict[Future[Report], Action] = {}

    def submit(self, action: Action, memory: int) -> Future[Report]:
        future: Future[Report] = Future()
        self.under_way[future] = action
        self.most = max(self.most, len(self.under_way))
        return future

    def look(self) -> None:
        future, action = self.under_way.popitem()
        future.set_result(Report(make_event(action, "built")))

    def free_memory(self) -> int:
        return self.memory


@pytest.mark.parametrize(("memory", "most"), [(600 * MIB, 1), (1100 * MIB, 2)])
def test_first_compiles_of_one_model_share_memory(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, memory: int, most: int
) -> None:
    """Only the weights in the archive are known: each compile may take 512 MiB."""
    workers = _Workers(memory)
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(pools, "open_executor", lambda *_: workers)
    monkeypatch.setattr(pools, "_LOOK", 0.01)
    pool = pools.Pool(open_workspace(tmp_path), 2, always=False)
    actions = [_compile(archive, method) for method in ("decode", "prefill")]
    assert len(list(pool.run(actions))) == 2
    assert workers.most == most


@pytest.mark.parametrize(("memory", "most"), [(MIB, 1), (9 * MIB, 2)])
def test_compiles_of_a_model_that_grew_share_memory(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, memory: int, most: int
) -> None:
    workers = _Workers(memory)
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(pools, "open_executor", lambda *_: workers)
    monkeypatch.setattr(pools, "_LOOK", 0.01)
    workspace = open_workspace(tmp_path)
    add_costs(workspace.store, {Name("compile", "m", "p", "decode"): Cost(1.0, 1000)})
    pool = pools.Pool(workspace, 2, always=False)
    actions = [_compile(archive, method) for method in ("decode", "prefill")]
    assert len(list(pool.run(actions))) == 2
    assert workers.most == most
