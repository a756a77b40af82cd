"""New weights from an exporter, whose methods share them: each is read once, and checked then."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.features.exporters.export import export
from pipeline.features.refit import refit
from pipeline.features.refit.archive_storages import FileStorage
from pipeline.features.refit.expectations import expects_refit, read_own
from pipeline.features.refit.refit import refit_unit
from pipeline.plan.actions import Action
from pipeline.plan.keys import program_key
from pipeline.plan.plan import Plan
from pipeline.program import archive_facts
from pipeline.program.archive_reader import open_archive
from pipeline.run.build.perform_compile import perform_compile
from pipeline.run.executors import local
from pipeline.run.stages import Stages
from pipeline.store.digest import hash_json
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.features.refit.__main__ import compiled

EXPORTER = """
import torch


class Scaled(torch.nn.Module):
    def __init__(self, linear, scale):
        super().__init__()
        self.linear, self.scale = linear, scale

    def forward(self, x):
        return self.linear(x) * self.scale


def export_methods(seed=0):
    torch.manual_seed(seed)
    linear = torch.nn.Linear(128, 128).requires_grad_(False)
    example = (torch.ones(1, 128),)
    return {
        f"times{scale}": torch.export.export(Scaled(linear, scale), example) for scale in (2, 3)
    }
"""


class Model:
    """A workspace with one package, whose exporter is run with a new seed each time."""

    def __init__(self, root: Path) -> None:
        self.workspace = Workspace(root / "w", Store(root / "store"), jobs=1)
        for folder in ("models", "partition_configs"):
            (self.workspace.root / folder).mkdir(parents=True)
        (self.workspace.root / "models" / "scaled.py").write_text(EXPORTER)
        self.seed = -1

    def export(self) -> list[Action]:
        """Export with the next seed; return the compile actions."""
        self.seed += 1
        methods = "".join(f"  times{n}: {{partitioners: [xnnpack]}}\n" for n in (2, 3))
        config = f"model: scaled\nexport: {{seed: {self.seed}}}\nmethods:\n{methods}"
        (self.workspace.root / "partition_configs" / "scaled.yaml").write_text(config)
        export(self.export_action(), self.workspace, Stages())
        return list(Plan(self.workspace).compiles("scaled"))

    def export_action(self) -> Action:
        plan = Plan(self.workspace)
        return plan.models.export(str(plan.export("scaled")))

    def is_right(self, action: Action) -> bool:
        """Return whether the stored result of an action is that of a compilation."""
        entry = self.workspace.store.get(action.digest)
        return entry is not None and hash_json(entry.result) == hash_json(
            compiled(action, self.workspace)
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose recipes were learned from its first seed."""
    model = Model(tmp_path_factory.mktemp("scaled"))
    for action in model.export():
        perform_compile(action, model.workspace, Stages())
    return model


def _refuse(storage: FileStorage) -> None:
    raise AssertionError("read again")


def test_shared_weights_are_read_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refit, "_LARGE", 0)
    first, second = model.export()
    assert refit_unit(first, model.workspace, Stages())
    with monkeypatch.context() as patched:
        patched.setattr(FileStorage, "pieces", _refuse)
        assert refit_unit(second, model.workspace, Stages())
    assert model.is_right(first) and model.is_right(second)


def test_a_lost_blob_with_a_known_key_is_stored_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "_LARGE", 0)
    first, second = model.export()
    assert refit_unit(first, model.workspace, Stages())
    store = model.workspace.store
    blobs = store.get(first.digest).result["blobs"]
    largest = max((store.blob_path(blob) for blob in blobs), key=lambda path: path.stat().st_size)
    largest.unlink()
    assert refit_unit(second, model.workspace, Stages())
    assert largest.exists() and model.is_right(second)


def _damage(model: Model, action: Action) -> None:
    """Change one byte of the weights in the archive of an action."""
    (source,) = action.inputs.sources.values()
    path = model.workspace.store.blob_path(source.content)
    with open_archive(path) as reader:
        place = reader.members.place("data/weights/weight_0")
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(place + 5)
        byte = file.read(1)
        file.seek(place + 5)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("large", [True, False])
def test_damaged_weights_are_not_used(
    model: Model, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(refit, "_LARGE", 0 if large else 1 << 30)
    action, _ = model.export()
    _damage(model, action)
    assert not refit_unit(action, model.workspace, Stages())
    assert model.workspace.store.get(action.digest) is None
    _damage(model, action)  # back again
    assert refit_unit(action, model.workspace, Stages())
    assert model.is_right(action)


def test_a_wrong_record_of_contents_is_not_believed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = model.workspace.store
    for action in model.export():
        (source,) = action.inputs.sources.values()
        key = program_key(source.program)
        record = store.get_by_key(key).result
        wrong = dict.fromkeys(record["contents"], "0" * 64)
        store.put_result(key, {**record, "contents": wrong})
        monkeypatch.setattr(archive_facts, "_identities", {})  # as in another process
        assert refit_unit(action, model.workspace, Stages())
        assert model.is_right(action)


def test_what_derives_from_results_no_longer_trusted_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    key, result = {"kind": "refit-model", "model": "scaled"}, {"refits": True}
    with monkeypatch.context() as patched:
        patched.setattr(Store, "find_vouchers", lambda store: ("somebody",))
        store.put_result(key, result, pushes=False)
    assert read_own(key, store) == {}
    store.put_result(key, result, pushes=False)
    assert read_own(key, store) == result


def test_refits_are_expected_once_recipes_are_learned(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.export()
    assert expects_refit(model.export_action(), model.workspace)
    other = Model(tmp_path)
    other.export()
    assert not expects_refit(other.export_action(), other.workspace)
    started = []
    for each in (model, other):
        executor = local.LocalExecutor(each.workspace, 2, False)
        monkeypatch.setattr(executor._processes, "submit", lambda *call: None)
        monkeypatch.setattr(
            executor._processes, "start_ahead", lambda *call, each=each: started.append(each)
        )
        executor.submit(each.export_action(), 0)
        executor.close()
    assert started == [other]
