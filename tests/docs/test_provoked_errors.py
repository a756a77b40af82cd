"""Errors that no other test provokes, for the entries of tools/reference/errors.toml.

`tests/conftest.py` compares the raised errors with the quoted messages.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from pipeline import moments
from pipeline.features.cluster.entry import open_cluster
from pipeline.features.exporters.exporter import call_export_methods
from pipeline.features.help.scripts import run as print_script
from pipeline.features.to_backend.to_backend import to_backend
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.run import perform
from pipeline.run.executors import ExecutorLostError
from pipeline.store.errors import PipelineError, SourceError
from pipeline.store.settings_reader import open_settings
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.error_entries import find_problems, make_workspace


def open_empty(folder):
    return Workspace(folder, Store(folder / ".store"), 1)


def test_a_function_of_python_that_is_given_something_else():
    with pytest.raises(TypeError) as raised:
        to_backend(["xnnpack"])
    moments.show_error(str(raised.value))


def test_parameters_that_an_exporter_does_not_take():
    module = ModuleType("speech")
    module.__file__ = "models/speech.py"
    module.export_methods = lambda size=4: {}
    with pytest.raises(SourceError):
        call_export_methods(module, {"width": 8})


def test_two_sources_of_one_model(tmp_path):
    workspace = make_workspace(tmp_path / "team")
    (workspace / "models" / "vision.py").touch()
    lines = find_problems(workspace, "model: vision\nmethods: {encode: {}}\n")
    assert sum("keep one" in line for line in lines) == 1


def test_an_exporter_without_the_feature_that_runs_it(monkeypatch):
    monkeypatch.setattr(perform, "find_functions", lambda moment: {})
    with pytest.raises(PipelineError):
        perform._find_performer(SimpleNamespace(kind="export", title="export speech"))


def test_settings_that_are_nested_too_deep(tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"x = {'[' * 4000}{']' * 4000}\n")
    with pytest.raises(PipelineError):
        open_settings(tmp_path)


def test_a_shell_that_has_no_script(tmp_path):
    with pytest.raises(PipelineError):
        print_script(["fihs"], tmp_path)


def test_a_package_whose_config_is_gone(tmp_path):
    plan = Plan(open_empty(make_workspace(tmp_path / "team")))
    task = ActionTask(plan, "link", package="vision")
    with pytest.raises(PipelineError):
        task.status()


def test_a_cluster_without_dask(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ExecutorLostError) as raised:
        open_cluster(open_empty(tmp_path), 1, False, "dask:tcp://build:8786")
    moments.show_error(str(raised.value))
