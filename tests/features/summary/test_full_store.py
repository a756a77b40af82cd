"""The end of a run names a full store that evicted results which its packages need."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.features.summary.full_store import describe_full_store
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.report.events import make_event
from pipeline.store.workspace import open_workspace

LINE = (
    "the store is full (1.0 MB): it has evicted results of p, so the next run builds them again; "
    "raise `store_size`"
)


@pytest.mark.parametrize("outcome", ["built", "failed", "not-run"])
@pytest.mark.parametrize("kept", [True, False])
def test_an_evicted_compile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool, outcome: str
) -> None:
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PTE_PIPELINE_STORE_SIZE", "1MB")
    workspace = open_workspace(tmp_path)
    digest = workspace.store.put_result({"kind": "reads"}, {"runs": []}, pushes=False)
    workspace.write_state(
        "p", {"link": {"action": "0" * 64, "files": {}}, "compile": {"forward": digest}}
    )
    if not kept:
        workspace.store.action_path(digest).unlink()
    action = Action("compile", "m", "p", "forward", {"of": "p"}, LinkInputs())
    plan = SimpleNamespace(workspace=workspace, methods=lambda package: None)
    lines = list(describe_full_store(plan, [make_event(action, outcome)]))
    assert lines == ([LINE] if outcome == "built" and not kept else [])
