"""`doit pretrained` on packages that transformers can't run; test_exported.py runs one."""

from types import SimpleNamespace

import pytest
import torch

from pipeline.features.transformers.pretrained_folder import _read_record
from pipeline.features.transformers.recorded import write_record
from pipeline.program.archive import save_programs
from pipeline.store.errors import PipelineError


@pytest.fixture
def source(tmp_path):
    """Return a function that writes an archive of one program, and returns its path."""

    def write(record=None):
        linear = torch.nn.Linear(2, 2).requires_grad_(False)
        program = torch.export.export(linear, (torch.ones(1, 2),))
        if record is not None:
            write_record(program.graph_module.meta, record)
        with open(tmp_path / "model.pt2", "wb") as file:
            save_programs({"features": program}, file)
        return SimpleNamespace(archive=tmp_path / "model.pt2", entry="features")

    return write


def test_a_package_of_another_exporter_is_refused(source):
    with pytest.raises(PipelineError, match=r"vision/features: its model was not exported by tr"):
        _read_record("vision", "features", source())


def test_an_archive_keeps_what_its_export_recorded(source):
    record = {"version": "5.24.0", "patches": [], "component": "model", "metadata": {"kwargs": {}}}
    assert _read_record("vision", "features", source(record)) == record
