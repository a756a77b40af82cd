"""Options that name files of the workspace: only their content counts, not where they are.

The backend comes from another distribution, and gets such files the way our backends do.
"""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import ValidationError

from pipeline.backends import Options
from pipeline.backends.workspace_files import WorkspaceFiles, find_misfits, located, named_files
from tests.features.backend_plugins.test_plugins import MODEL, install
from tests.support.lowerable import OneProcess, bench_for, both, manifest_of
from tests.support.patches import python_path

PLUGIN = '''
"""Delegates to a demo backend of ExecuTorch, with what stands in a file as a compile spec."""

from pathlib import Path
from typing import Annotated

from pipeline.backends import Backend, Execution, Lowering, Options, WorkspaceFiles


def _odd(options, path):
    if "odd" in path.read_text():
        yield "board", "is odd", "even ones"


FILES = WorkspaceFiles((".ini",), brought=("acme.ini",), misfits=_odd)


class AcmeOptions(Options):
    board: Annotated[str, FILES] = "acme.ini"


def make_partitioner(options):
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import DelegationSpec
    from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo

    made = AddMulPartitionerDemo()
    if options.board != "acme.ini":
        spec = made.delegation_spec
        board = CompileSpec("board", Path(options.board).read_bytes())
        made.delegation_spec = DelegationSpec(spec.backend_id, [*spec.compile_specs, board])
    return made


BACKEND = Backend(
    name="acme",
    backend_id="BackendWithCompilerDemo",
    summary="Acme's accelerator",
    options=AcmeOptions,
    lowering=Lowering(make_partitioner=make_partitioner),
    execution=Execution(cannot_run=lambda: "needs a board of Acme's"),
)
'''
COMPILES = ("compile board/features", "compile board/classify")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Built once; each test restores what it changes."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "site").mkdir()
    install(folder / "site", PLUGIN)
    config = both(partitioners=[{"acme": {"board": "boards/a.ini"}}])
    bench = bench_for(folder / "workspace", {"board": config}, OneProcess)
    (bench.root / "models" / "small.py").write_text(MODEL)
    (bench.root / "boards").mkdir()
    (bench.root / "boards" / "a.ini").write_text("[board]\nspeed = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(folder / "site"))
        assert bench.doit() == 0, bench.output
        yield bench


@pytest.mark.slow
def test_the_backend_is_given_the_file(bench):
    assert b"speed = 1" in bench.bytes_of("board", "board.pte")
    assert str(bench.root).encode() not in bench.bytes_of("board", "board.pte")
    lowering = manifest_of(bench, "board")["methods"]["features"]["lowering"]
    ((place, (digest,)),) = lowering["files"].items()
    assert place == "partitioners[0].acme.board" and len(digest) == 64
    assert "boards/a.ini" not in str(lowering)  # the package of a moved file would say otherwise


@pytest.mark.slow
def test_another_content_is_a_miss_and_told(bench):
    bench.edit("boards/a.ini", "speed = 1", "speed = 2")
    assert bench.doit("explain", "board/features") == 0
    said = "the file of config methods.features.partitioners[0].acme.board changed"
    assert said in bench.output
    assert bench.doit("lower") == 0, bench.output
    assert {bench.outcomes()[name] for name in COMPILES} == {"built"}
    assert b"speed = 2" in bench.bytes_of("board", "board.pte")
    bench.edit("boards/a.ini", "speed = 2", "speed = 1")
    assert bench.doit() == 0, bench.output
    assert {bench.outcomes()[name] for name in COMPILES} == {"hit"}


@pytest.mark.slow
def test_another_place_of_the_same_content_is_none(bench, tmp_path):
    before = bench.bytes_of("board", "board.pte"), bench.bytes_of("board", "manifest.json")
    (bench.root / "boards" / "a.ini").rename(bench.root / "b.ini")
    bench.edit("partition_configs/board.yaml", "boards/a.ini", "b.ini")
    assert bench.doit() == 0, bench.output
    assert {bench.outcomes()[name] for name in (*COMPILES, "link board")} == {"up-to-date"}
    (bench.root / "boards" / "a.ini").write_bytes((bench.root / "b.ini").read_bytes())
    (bench.root / "b.ini").unlink()
    bench.edit("partition_configs/board.yaml", "b.ini", "boards/a.ini")
    assert bench.doit("-a", "lower") == 0, bench.output  # built in the other place
    assert (
        bench.bytes_of("board", "board.pte"),
        bench.bytes_of("board", "manifest.json"),
    ) == before


@pytest.mark.slow
def test_nothing_to_do_reads_no_config(bench):
    assert bench.doit() == 0
    code = (
        "import sys; sys.argv = ['doit']\n"
        "from doit.doit_cmd import DoitMain\n"
        "assert DoitMain().run([]) == 0\n"
        "assert not {'torch', 'executorch', 'yaml', 'pipeline.config.parser'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=bench.root, env=bench.environment, check=True, timeout=60
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no file 'boards/a.ini' in the workspace"),
        ("odd", "is odd; even ones"),
    ],
)
def test_what_can_not_be_is_told_when_planned(bench, content, says):
    path = bench.root / "boards" / "a.ini"
    before = path.read_text()
    path.unlink() if content is None else path.write_text(content)
    try:
        assert bench.doit("plan") == 1
        # Reported once for both methods, since the file has an alias in the other one.
        assert bench.output.count(f"partitioners[0].acme.board: {says} [PTE") == 1
        assert bench.doit("lower") == 1
        assert says in bench.output
    finally:
        path.write_text(before)
    assert bench.doit() == 0, bench.output


class Named(Options):
    one: Annotated[str, WorkspaceFiles((".ini",), brought=("own/a.ini",))] = "own/a.ini"
    many: Annotated[tuple[str, ...] | None, WorkspaceFiles((".npz", ".pt"), many=True)] = None
    other: str = "a.ini"


def test_what_names_a_file(tmp_path):
    assert named_files(Named()) == {}
    options = Named(one="x/b.ini", many="c.npz")
    assert named_files(options) == {"one": ("x/b.ini",), "many": ("c.npz",)}
    assert options.resolved() == {"one": None, "many": None, "other": "a.ini"}
    assert Named().resolved()["one"] == "own/a.ini"
    whole = located(options, Path("/w"))
    assert (whole.one, whole.many, whole.other) == ("/w/x/b.ini", ("/w/c.npz",), "a.ini")
    assert located(Named(), Path("/w")) == Named()
    (tmp_path / "c.npz").touch()
    assert list(find_misfits(options, tmp_path)) == [
        ("one", "no file 'x/b.ini' in the workspace", "")
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"one": "/a.ini"}, "must be a file by its path in the workspace"),
        ({"one": "../a.ini"}, "must be a file by its path in the workspace"),
        ({"one": "a.txt"}, "must end in .ini or be own/a.ini"),
        ({"many": ["a.npz", "b//c.pt"]}, "must be files by their path in the workspace"),
        ({"many": "a.zip"}, "must end in .npz, .pt"),
    ],
)
def test_what_names_none(options, says):
    with pytest.raises(ValidationError, match=says):
        Named(**options)
