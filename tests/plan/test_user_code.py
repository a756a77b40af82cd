"""A workspace's code that configs name is found by features, which may be missing."""

import pytest

from pipeline.plan.user_code import check_code, find_code, open_code
from pipeline.store.errors import SourceError
from pipeline.store.workspace import open_workspace


def test_code_of_a_feature_that_is_not_installed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.plan.user_code.find_functions", lambda moment: {})
    workspace = open_workspace(tmp_path)
    assert find_code("operators", [], workspace) == {}
    check_code("passes", {}, workspace)
    with pytest.raises(SourceError, match=r'^operators: this installation has no feature "operat'):
        find_code("operators", ["team_ops"], workspace)


def test_kinds_of_code_select_what_configs_may_name(tmp_path):
    workspace = open_workspace(tmp_path)
    assert open_code("passes", workspace).select(["fusions:Fuse"]) == ["fusions:Fuse"]
    assert open_code("operators", workspace).select(["team_ops"]) == []
