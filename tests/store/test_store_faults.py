"""What can happen to a store while builds use it: eviction, deletion, damage, edits.

Real processes, bounded in count and time. `tests/trust/test_kills.py` covers kills.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store.digest import Digest
from pipeline.store.store import MissingBlobError, Store
from tests.support.bench import Bench
from tests.support.resident import run_python
from tests.trust.prover import find_workspace

pytestmark = pytest.mark.slow

SABOTAGE = """
import json
import shutil
from pipeline.tasks import *
from pipeline.run import pool

_add = pool.Pool.add
_done = []


def add(self, ready):
    if any(action.kind == "{kind}" for action in ready) and not _done:
        _done.append(True)
        shutil.rmtree(self._workspace.store.root / "{what}")
    _add(self, ready)


pool.Pool.add = add
"""


PER_OPERATOR = (
    "partition_configs/pair.yaml",
    "[xnnpack]",
    "[{xnnpack: {per_op_mode: true}}]",
)


@pytest.fixture(scope="module")
def per_operator(_built, tmp_path_factory):
    """The package that a build with this change gives if nothing interferes."""
    root = tmp_path_factory.mktemp("per_operator") / "pair"
    bench = Bench(Path(shutil.copytree(_built.root, root)))
    bench.edit(*PER_OPERATOR)
    assert bench.doit("lower") == 0, bench.output
    return bench.bytes_of("pair", "pair.pte")


@pytest.mark.parametrize(
    ("kind", "what"),
    [("compile", "blobs"), ("link", "actions"), ("link", "blobs"), ("validate", "blobs")],
)
def test_what_vanishes_between_check_and_read_is_a_miss_not_an_error(
    built, per_operator, kind, what
):
    """Evicted by anyone just before it is read: the exported program, the objects, everything."""
    built.edit(*PER_OPERATOR)
    if kind == "validate":
        built.edit("partition_configs/pair.yaml", "model: pair", "model: pair\nvalidate: {seed: 7}")
    (built.root / "dodo.py").write_text(SABOTAGE.format(kind=kind, what=what))
    assert built.doit() == 0, built.output
    assert built.outcomes()[f"{kind} pair" + "/decode" * (kind == "compile")] == "built"
    assert built.bytes_of("pair", "pair.pte") == per_operator
    (built.root / "dodo.py").write_text("from pipeline.tasks import *\n")
    assert built.doit() == 0, built.output
    assert built.outcomes()["link pair"] == "up-to-date"


def test_a_validation_has_its_quantized_program_made_again(tmp_path):
    """The package is compared with that too, so without it the report would differ."""
    bench = Bench(tmp_path / "quantized")
    shutil.copytree(find_workspace("quantized"), bench.root)
    (bench.root / "partition_configs" / "static.yaml").unlink()
    assert bench.doit() == 0, bench.output
    report = bench.bytes_of("dynamic", "report.md")
    for path in [*bench.store.glob("actions/*/*.json")]:
        if json.loads(path.read_bytes())["key"]["kind"] in ("quantize", "measure", "validate"):
            path.unlink()
    shutil.rmtree(bench.root / "build")
    assert bench.doit() == 0, bench.output
    assert bench.outcomes()["validate dynamic"] == "built"
    assert "| quantized program (" in report.decode()
    assert bench.bytes_of("dynamic", "report.md") == report


def test_eviction_all_the_time_only_costs_time(built):
    """Another process evicts everything unused, over and over, during two builds."""
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    evicting = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys; from pathlib import Path; from pipeline.store.store import Store\n"
            "from pipeline.features.cache.eviction import evict\n"
            "while True: evict(Store(Path(sys.argv[1])), 0)",
            str(built.store),
        ],
    )  # fmt: skip
    try:
        assert built.process("lower", timeout=300) == 0, built.output
    finally:
        evicting.kill()
        evicting.wait(10)
    assert built.bytes_of("pair", "pair.pte") == before


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "bit flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "swapped": None,
}


def _damage(path, how, other):
    content = other.read_bytes() if how == "swapped" else DAMAGE[how](path.read_bytes())
    path.chmod(0o644)
    path.write_bytes(content)


def stored(bench):
    """Return all stored files but the empty blob, which has nothing to damage."""
    files = [*(bench.store / "blobs").rglob("*"), *(bench.store / "actions").rglob("*")]
    return sorted(path for path in files if path.is_file() and path.stat().st_size)


@pytest.mark.parametrize("how", DAMAGE)
def test_no_stored_file_is_served_once_it_is_damaged(built, how):
    """Each file by itself, as the store's readers see it."""
    files = stored(built)
    assert len(files) > 15
    for path, other in zip(files, files[1:] + files[:1], strict=True):
        content = path.read_bytes()
        _damage(path, how, other)
        store = Store(built.store)
        name = Digest(path.parent.name + path.name.removesuffix(".json"))
        if path.suffix == ".json":
            assert store.get(name) is None
        else:
            assert not store.intact([name])
            with pytest.raises(MissingBlobError):
                store.read(name)
        assert not path.exists()
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["bit flipped", "swapped"])
def test_build_is_right_with_every_stored_file_damaged(built, how):
    files = stored(built)
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    for path, other in zip(files, files[1:] + files[:1], strict=True):
        _damage(path, how, other)
    assert built.doit("lower") == 0, built.output
    assert built.bytes_of("pair", "pair.pte") == before
    built.doit("cache", "verify")  # drops damaged files that aren't needed
    assert built.doit("cache", "verify") == 0, built.output
    assert built.doit("lower") == 0
    assert built.outcomes()["link pair"] == "up-to-date"


NO_PICKLE = """
import pickle, sys
from pathlib import Path
from pipeline.run.perform import perform
from pipeline.plan.plan import Plan
from pipeline.compile.preprocess.cache import counted_preprocess
from pipeline.run.stages import Stages
from pipeline.plan.status import export_status
from pipeline.store.workspace import open_workspace

workspace = open_workspace(Path("."))
for action in Plan(workspace).quantizes("pair").values():
    perform(action, workspace, Stages(), always=False)  # torch.export, which quantizes, unpickles
for action in [*Plan(workspace).compiles("pair"), Plan(workspace).link("pair")]:
    perform(action, workspace, Stages(), always=False)

def refuse(*arguments, **options):
    raise AssertionError("unpickled")

import _pickle, torch
for module in (pickle, _pickle):
    module.load = module.loads = module.Unpickler = refuse
pickle._Unpickler = pickle._load = pickle._loads = refuse
torch.load = refuse

plan = Plan(workspace)
actions = [*plan.compiles("pair"), plan.link("pair")]
for action in actions:
    workspace.store.action_path(action.digest).unlink()
for action in actions:  # reads the exported program and partitions
    assert not perform(action, workspace, Stages(), always=False)
for action in actions:
    assert perform(action, workspace, Stages(), always=False)  # reads objects and files
perform(plan.validate("pair"), workspace, Stages(), always=True)
assert export_status(plan, "pair").current
try:
    pickle.loads(b"")
except AssertionError:
    print("nothing was unpickled")
"""


def test_nothing_is_unpickled_where_store_and_artifacts_are_read(built):
    quantized = "decode:\n    quantize: {quantizer: xnnpack, calibration: generated}"
    built.edit("partition_configs/pair.yaml", "decode:", quantized)
    built.edit("partition_configs/pair.yaml", "constant", "validate: {atol: 0.1}\nconstant")
    done = run_python("-c", NO_PICKLE, cwd=built.root, env=built.environment)
    assert done.stdout.endswith("nothing was unpickled\n"), done.stderr


EDIT = """
from pathlib import Path
from pipeline.tasks import *
from pipeline.run import pool

_add = pool.Pool.add


def add(self, ready):
    if ready[0].kind == "compile":
        path = Path({name!r})
        path.write_bytes(Path({content!r}).read_bytes())
    _add(self, ready)


pool.Pool.add = add
"""


def test_archive_edited_while_the_build_runs_is_not_recorded_for_either_content(bench):
    workspace = bench("archives")
    path = workspace.root / "models" / "one.pt2"
    first = path.read_bytes()
    other = workspace.root / "models" / "many" / "classify.pt2"
    (workspace.root / "edited").write_bytes(other.read_bytes())
    hooked = EDIT.format(name=str(path), content=str(workspace.root / "edited"))
    (workspace.root / "dodo.py").write_text(hooked)
    assert workspace.doit("lower:one") == 1
    assert "one.pt2: changed while the build ran; run again" in workspace.output
    assert b'"kind":"compile"' not in b"".join(p.read_bytes() for p in stored(workspace))
    path.write_bytes(first)
    (workspace.root / "dodo.py").write_text("from pipeline.tasks import *\n")
    assert workspace.doit("lower:one") == 0, workspace.output


def test_config_edited_while_the_build_runs_is_stale_in_the_next(built, per_operator):
    """A run uses the content that it read, and never records it as what the file says now."""
    config = built.root / "partition_configs" / "pair.yaml"
    portable = config.read_text().replace("[xnnpack]", "[]")
    (built.root / "edited").write_text(portable)
    built.edit(*PER_OPERATOR)
    hooked = EDIT.format(name=str(config), content=str(built.root / "edited"))
    (built.root / "dodo.py").write_text(hooked)
    assert built.doit("lower") == 0, built.output
    assert built.bytes_of("pair", "pair.pte") == per_operator
    (built.root / "dodo.py").write_text("from pipeline.tasks import *\n")
    assert built.doit("plan") == 0
    assert "partitioners" in built.output and "1 waits" in built.output
