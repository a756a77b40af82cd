"""Files that an exporter reads are its inputs, as it read them, whatever the clock says."""

import os
import py_compile

import pytest

from pipeline.features.exporters.export import export
from pipeline.plan.plan import Plan
from pipeline.plan.status import export_status
from pipeline.run.stages import Stages
from pipeline.store.errors import SourceError
from pipeline.store.workspace import open_workspace
from tests.support.bench import bench_of


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    bench = bench_of("pair", tmp_path)
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(bench.store))
    monkeypatch.chdir(bench.root)
    (bench.root / "models" / "data.txt").write_text("1")
    return open_workspace(bench.root)


def run(workspace):
    """Return the files that were read, without folders."""
    export(Plan(workspace).models.export("pair"), workspace, Stages())
    action = Plan(workspace).models.export("pair")
    assert workspace.store.get(action.digest)
    return [name for name, value in action.key["reads"]["files"].items() if value != "folder"]


def begin(workspace, body):
    path = workspace.models / "pair.py"
    path.write_text(f"{body}\n{path.read_text()}")


def test_imports_and_opened_files_are_inputs(workspace):
    begin(workspace, "open('models/data.txt').read()")
    assert run(workspace) == ["models/_parts.py", "models/data.txt"]
    assert export_status(Plan(workspace), "pair").current
    (workspace.models / "data.txt").write_text("2")
    assert not export_status(Plan(workspace), "pair").current


def test_source_of_compiled_module_is_an_input(workspace):
    """Python reads its bytecode instead, if there is any."""
    py_compile.compile(str(workspace.models / "_parts.py"))
    assert run(workspace) == ["models/_parts.py"]


def test_file_that_is_looked_for_in_vain_is_an_input(workspace):
    begin(
        workspace,
        "import contextlib\nwith contextlib.suppress(OSError): open('models/none.txt')",
    )
    assert run(workspace) == ["models/_parts.py", "models/none.txt"]
    (workspace.models / "none.txt").write_text("now")
    assert not export_status(Plan(workspace), "pair").current


def test_what_an_exporter_writes_is_no_input(workspace):
    begin(workspace, "open('models/out.txt', 'w').write('x'); open('models/out.txt').read()")
    assert run(workspace) == ["models/_parts.py"]


@pytest.mark.parametrize("name", ["data.txt", "_parts.py", "pair.py"])
@pytest.mark.parametrize("compiled", [False, True], ids=["source", "byte code"])
def test_input_edited_while_the_exporter_runs_is_refused(workspace, name, compiled):
    """Its times are restored, as if the clock had jumped."""
    path = workspace.models / name
    os.utime(path, (10**9, 10**9))
    if compiled:
        py_compile.compile(str(workspace.models / "_parts.py"))
    begin(
        workspace,
        "import os; open('models/data.txt').read(); import _parts\n"
        f"open({str(path)!r}, 'a').write('# 2'); os.utime({str(path)!r}, (10**9, 10**9))",
    )
    with pytest.raises(SourceError, match=f"{name}: changed while the exporter ran; run again"):
        run(workspace)
    results = list((workspace.store.root / "actions").rglob("*.json"))
    assert not [path for path in results if b'"kind":"reads"' in path.read_bytes()]


def test_what_builds_write_and_the_environment_are_no_inputs(workspace):
    (workspace.build).mkdir(exist_ok=True)
    (workspace.build / "x.txt").write_text("x")
    begin(
        workspace, "import wave, pytest; open('build/x.txt').read(); open(pytest.__file__).read()"
    )
    assert run(workspace) == ["models/_parts.py"]
