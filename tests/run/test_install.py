"""The files next to a package in `build/` belong to this package."""

import pytest

from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.run.install import install
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

LINKED = LinkInputs()
REPORTS = {"report.html": b"passed", "reproduce/run/reproduce.py": b"run"}


@pytest.fixture
def workspace(tmp_path):
    made = Workspace(tmp_path, Store(tmp_path / ".store"), 1)
    put(made, "link", {"pack.pte": b"one", "contract.json": b"{}"})
    put(made, "validate", REPORTS)
    return made


def put(workspace, kind, contents):
    inputs = LINKED if kind == "link" else None
    action = Action(kind, "small", "pack", None, {"kind": kind}, inputs)
    files = {name: workspace.store.put(data) for name, data in contents.items()}
    install(workspace, action, {"files": files})


def present(workspace):
    folder = workspace.package("pack")
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in found}


def test_reports_go_when_another_package_takes_the_place_of_theirs(workspace):
    put(workspace, "link", {"pack.pte": b"two", "contract.json": b"{}"})
    assert present(workspace) == {"pack.pte", "contract.json"}
    assert workspace.state("pack")["validate"]["files"]  # `doit plan` uses them to name changes


def test_reports_stay_when_the_same_package_is_put_back(workspace):
    (workspace.package("pack") / "pack.pte").unlink()
    put(workspace, "link", {"pack.pte": b"one", "contract.json": b"{}"})
    assert present(workspace) == {"pack.pte", "contract.json", *REPORTS}


def test_the_record_stays_while_the_same_files_are_put_there(workspace, monkeypatch):
    """Another run in this workspace may read it at any time, and add to it."""
    wrote, original = [], Workspace.write_state

    def write_state(workspace, package, state):
        wrote.append(sorted(state))
        return original(workspace, package, state)

    monkeypatch.setattr(Workspace, "write_state", write_state)
    put(workspace, "link", {"pack.pte": b"one", "contract.json": b"{}"})
    assert wrote == [["compile", "link", "quantize", "validate"]]
    put(workspace, "link", {"pack.pte": b"two", "contract.json": b"{}"})
    assert wrote[1] == ["compile", "quantize", "validate"]


def test_a_run_that_was_killed_as_it_put_a_package_there_leaves_no_older_reports(workspace):
    state = workspace.state("pack")
    state.pop("link")
    workspace.write_state("pack", state)
    put(workspace, "link", {"pack.pte": b"two"})
    assert "report.html" not in present(workspace)
