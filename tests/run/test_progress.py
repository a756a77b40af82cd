"""The progress of actions, read once for both the event stream and the terminal."""

from dataclasses import replace

from pipeline.plan.actions import Action
from pipeline.report.stream import EventStream
from pipeline.run.action_status import ActionStatus, log_path, progress_path, write_status
from pipeline.run.progress import ProgressLog
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.events import read_events


def test_the_terminal_sees_each_status_and_the_stream_one_a_second(tmp_path):
    workspace = Workspace(tmp_path, Store(tmp_path / "store"), 1)
    action = Action("compile", "model", "pack", "run", {}, None)
    status = progress_path(action, workspace)
    status.parent.mkdir(parents=True)
    log = ProgressLog(workspace)
    log.look([action])
    assert log.find(action) is None  # before its first report
    log.stream = EventStream(workspace.build, jobs=1, executor="")
    for stage in ("to edge", "emit"):
        write_status(status, stage, 1, 2)
        log.look([action])
        assert log.find(action) == ActionStatus(stage, 1, 2)
    assert [line.get("stage") for line in read_events(workspace.build)] == [None, "to edge"]
    log.end(action)
    assert log.find(action) is None


def test_a_log_has_the_name_of_its_method_its_package_or_its_model(tmp_path):
    workspace = Workspace(tmp_path, Store(tmp_path / "store"), 1)
    compiling = Action("compile", "model", "pack", "run", {}, None)
    linking = replace(compiling, kind="link", method=None)
    exporting = replace(linking, kind="export", package=None)
    logs = [
        log_path(action, workspace).relative_to(workspace.logs).as_posix()
        for action in (compiling, linking, exporting)
    ]
    assert logs == ["pack/compile-run.log", "pack/link-pack.log", "models/export-model.log"]
