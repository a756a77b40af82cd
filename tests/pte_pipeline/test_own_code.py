"""The public interface counts in keys as this package's code, and isn't an input of exporters."""

from pipeline.plan.places import Places
from pipeline.plan.user_code import CodeReader
from pipeline.store.workspace import open_workspace
from tests.support.bench import REPOSITORY


def test_its_files_are_no_inputs(tmp_path):
    places = Places(open_workspace(tmp_path))
    for package in ("pipeline", "pte_pipeline"):
        assert not places.wanted(str(REPOSITORY / package / "tasks.py"))
    assert places.wanted(str(REPOSITORY / "pte_pipeline2" / "tasks.py"))


def test_passes_that_import_it_depend_on_nothing_more(tmp_path):
    path = tmp_path / "passes" / "fuse.py"
    path.parent.mkdir()
    path.write_text("import json\nfrom pte_pipeline import PipelineError\nimport pipeline.store\n")
    assert CodeReader(open_workspace(tmp_path)).imports([path]) == ["json"]
