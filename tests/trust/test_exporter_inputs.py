"""Changing anything that an exporter reads triggers a new export: docs/concepts/cache.md's table.

Each case is an exporter that computes a number from one kind of input, and a change to that input.
Its export after the change, with the store from before, must equal an export with an empty store.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pytest

from pipeline import moments
from pipeline.features.explain.explain import run as explain
from pipeline.features.exporters.export import export
from pipeline.features.tracing import nondeterminism, tracer
from pipeline.features.tracing.nondeterminism import find_nondeterminism
from pipeline.features.tracing.tracer import has_kernel_view
from pipeline.moments import find_features
from pipeline.plan.places import Places
from pipeline.plan.plan import Plan
from pipeline.plan.reads import parse_records
from pipeline.plan.status import export_status
from pipeline.run.stages import Stages
from pipeline.store.distributions import identity
from pipeline.store.errors import PipelineError, SourceError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace, open_workspace
from tests.support.bench import REPOSITORY

EXPORTER = """
import os, sys
from pathlib import Path
import torch
{inputs}
HERE = Path(__file__).resolve().parent
{code}

class Times(torch.nn.Module):
    def forward(self, x):
        return x * float(VALUE)

def export_methods():
    return {{"forward": torch.export.export(Times(), (torch.ones(2),))}}
"""
CONFIG = "model: a\nmethods:\n  forward:\n    partitioners: []\n"


@dataclass(frozen=True)
class Site:
    """A workspace, a folder outside, and a folder on the module search path."""

    root: Path
    outside: Path
    library: Path

    @property
    def models(self) -> Path:
        return self.root / "models"

    def workspace(self, store: str = "store") -> Workspace:
        return replace(open_workspace(self.root), store=Store(self.root.parent / store))

    def write(self, code: str, inputs: str = "") -> None:
        text = EXPORTER.format(code=code.replace("OUT", str(self.outside)), inputs=inputs)
        (self.models / "a.py").write_text(text)


def make_site(folder: Path) -> Site:
    site = Site(folder / "ws", folder / "outside", folder / "library")
    for each in (site.models, site.root / "partition_configs", site.outside, site.library):
        each.mkdir(parents=True)
    (site.root / "partition_configs" / "p.yaml").write_text(CONFIG)
    return site


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = make_site(tmp_path)
    monkeypatch.chdir(made.root)
    monkeypatch.syspath_prepend(str(made.library))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return made


def viewed_by(kernel: bool) -> AbstractContextManager[object]:
    """Return a context that hides the kernel's view of an exporter, unless `kernel`."""
    return nullcontext() if kernel else patch.object(tracer, "has_kernel_view", lambda: False)


def build(workspace: Workspace, kernel: bool = True) -> tuple[str, str]:
    """Export as a run does; return the outcome and the digest of the program."""
    identity.cache_clear()  # digests of installed libraries, which a run computes once
    plan = Plan(workspace)
    state = export_status(plan, "a").state
    if state == "stale":
        with viewed_by(kernel):
            export(plan.models.export("a"), workspace, Stages())
        plan.forget("a")
    methods = plan.models.methods("a")
    assert methods is not None
    return state, methods["forward"].program


# The cases: code that sets VALUE, the initial files, and the change

Do = Callable[[Site], None]


@dataclass(frozen=True)
class Case:
    code: str
    before: Do
    change: Do
    environment: tuple[str, ...] = ()


def text(name: str, value: str) -> Do:
    """Write a text; `name` is relative to the workspace, or begins with OUT or LIB."""

    def write(site: Site) -> None:
        path = place(site, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)

    return write


def place(site: Site, name: str) -> Path:
    folder = {"OUT": site.outside, "LIB": site.library}.get(name.split("/")[0], site.root)
    return folder / name.removeprefix("OUT/").removeprefix("LIB/")


def both(*steps: Do) -> Do:
    def run(site: Site) -> None:
        for step in steps:
            step(site)

    return run


def nothing(site: Site) -> None:
    return None


def edit(code: str, name: str) -> Case:
    """Return a case whose input is a file with a number that changes."""
    return Case(code, text(name, "1"), text(name, "2"))


def binary(code: str, name: str, write: Callable[[Path, float], None]) -> Case:
    def put(value: float) -> Do:
        return lambda site: write(place(site, name), value)

    return Case(code, put(1.0), put(2.0))


def link(name: str, target: str) -> Do:
    def make(site: Site) -> None:
        path = place(site, name)
        path.unlink(missing_ok=True)
        path.symlink_to(place(site, target))

    return make


def variable(value: str | None) -> Do:
    def put(site: Site) -> None:
        if value is None:
            os.environ.pop("CHECKPOINT", None)
        else:
            os.environ["CHECKPOINT"] = value

    return put


def environment(code: str) -> Case:
    return Case(code, variable("1"), variable("2"))


def distribution(version: str) -> Do:
    """Install a library in a folder on the module search path, replacing another version."""

    def install(site: Site) -> None:
        for old in site.library.glob("small_lib*"):
            shutil.rmtree(old)
        info = f"LIB/small_lib-{version}.0.dist-info"
        text(f"{info}/METADATA", f"Name: small-lib\nVersion: {version}.0\n")(site)
        text(f"{info}/RECORD", "small_lib/__init__.py,,\n")(site)
        text("LIB/small_lib/__init__.py", f"NUMBER = {version}\n")(site)

    return install


def entry_point(site: Site) -> None:
    (info,) = site.library.glob("*.dist-info")
    (info / "entry_points.txt").write_text("[small]\nx = small_lib\n")


def executable(site: Site) -> None:
    place(site, "w.txt").chmod(0o755)


def save_safetensors(path: Path, value: float) -> None:
    import torch
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"x": torch.tensor([value])}, str(path))


def save_torch(path: Path, value: float) -> None:
    import torch

    torch.save(torch.tensor([value]), path)


def save_numpy(path: Path, value: float) -> None:
    import numpy

    numpy.save(path, numpy.array([value], dtype="float32"))


def save_floats(path: Path, value: float) -> None:
    path.write_bytes(struct.pack("<4096f", *[value] * 4096))


def save_sqlite(path: Path, value: float) -> None:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("create table t (x real)")
    connection.execute("insert into t values (?)", (value,))
    connection.commit()
    connection.close()


def save_zip(path: Path, value: float) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.txt", str(value))


def symlinked_models(site: Site) -> None:
    """Move `models/` elsewhere, and leave a link to it."""
    shutil.move(site.models, site.root.parent / "real_models")
    site.models.symlink_to(site.root.parent / "real_models")


SUBPROCESS = "import subprocess; VALUE = subprocess.run({}, capture_output=True, check=True).stdout"
WORKERS = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, i): return torch.tensor(float(open("w.txt").read()))
VALUE = next(iter(torch.utils.data.DataLoader(Data(), num_workers=1))).item()
"""
SUM = "sum(float(Path(p).read_text()) for p in {})"
SHARDS = both(text("shards/1.txt", "1"), text("shards/.x/none.txt", "9"))
ONE_MORE = variable(None), variable("1")

CASES: dict[str, dict[str, Case]] = {
    "file content": {
        "open": edit("VALUE = open('w.txt').read()", "w.txt"),
        "bytes path": edit("VALUE = open(b'w.txt').read()", "w.txt"),
        "path object": edit("VALUE = (HERE.parent / 'w.txt').read_text()", "w.txt"),
        "steps up": edit("VALUE = open('models/../w.txt').read()", "w.txt"),
        "dir_fd": edit(
            "d = os.open('data', os.O_RDONLY)\n"
            "VALUE = os.read(os.open('w.txt', os.O_RDONLY, dir_fd=d), 9)",
            "data/w.txt",
        ),
        "chdir": edit("os.chdir('data'); VALUE = open('w.txt').read()", "data/w.txt"),
        "hidden folder": edit("VALUE = open('.cfg/w.txt').read()", ".cfg/w.txt"),
        "torch.load": binary("VALUE = torch.load('w.pt')", "w.pt", save_torch),
        "np.load": binary("import numpy; VALUE = numpy.load('w.npy')[0]", "w.npy", save_numpy),
        "np.memmap": binary(
            "import numpy; VALUE = numpy.memmap('w.bin', dtype='float32', mode='r')[0]",
            "w.bin",
            save_floats,
        ),
        "mmap": binary(
            "import mmap, struct; f = open('w.bin', 'rb')\n"
            "m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"
            "VALUE = struct.unpack('<f', m[:4])[0]",
            "w.bin",
            save_floats,
        ),
        "zipfile": binary(
            "import zipfile; VALUE = zipfile.ZipFile('w.zip').read('x.txt')", "w.zip", save_zip
        ),
        "sqlite3": binary(
            "import sqlite3; c = sqlite3.connect('w.db')\n"
            "VALUE = c.execute('select x from t').fetchone()[0]",
            "w.db",
            save_sqlite,
        ),
        "can be executed": Case(
            "VALUE = 1 + os.access('w.txt', os.X_OK)", text("w.txt", "1"), executable
        ),
        "a temporary file that stays": edit(
            "import tempfile; f, _ = tempfile.mkstemp(); os.write(f, b'x')\n"
            "VALUE = open('w.txt').read()",
            "w.txt",
        ),
        "DataLoader workers": edit(WORKERS, "w.txt"),
    },
    "file content, read by native code": {
        "safetensors": binary(
            "from safetensors.torch import load_file; VALUE = load_file('w/m.safetensors')['x']",
            "w/m.safetensors",
            save_safetensors,
        ),
        "torch.from_file": binary(
            "VALUE = torch.from_file('w.bin', size=4096)[0]", "w.bin", save_floats
        ),
    },
    "existence of a file or a folder": {
        "exists": Case("VALUE = 2 if Path('w.txt').exists() else 1", nothing, text("w.txt", "")),
        "isfile": Case("VALUE = 2 if os.path.isfile('w.txt') else 1", nothing, text("w.txt", "")),
        "is_dir": Case("VALUE = 2 if Path('d').is_dir() else 1", nothing, text("d/x", "")),
        "access": Case(
            "VALUE = 2 if os.access('w.txt', os.R_OK) else 1", nothing, text("w.txt", "")
        ),
        "stat": Case("VALUE = os.stat('w.txt').st_size", text("w.txt", "1"), text("w.txt", "22")),
        "open in vain": Case(
            "try: VALUE = open('w.txt').read()\nexcept OSError: VALUE = 1",
            nothing,
            text("w.txt", "2"),
        ),
        "is gone": Case(
            "VALUE = 2 if Path('w.txt').exists() else 1",
            text("w.txt", ""),
            lambda site: (site.root / "w.txt").unlink(),
        ),
    },
    "content of a folder": {
        "glob": Case(
            "import glob; VALUE = " + SUM.format("glob.glob('shards/*.txt')"),
            SHARDS,
            text("shards/2.txt", "2"),
        ),
        "Path.rglob": Case(
            "VALUE = " + SUM.format("Path('shards').rglob('[0-9].txt')"),
            SHARDS,
            text("shards/sub/2.txt", "2"),
        ),
        "os.walk": Case(
            "VALUE = sum(len(names) for _, _, names in os.walk('shards'))",
            SHARDS,
            text("shards/new/2.txt", "2"),
        ),
        "os.scandir": Case(
            "VALUE = len(list(os.scandir('shards')))", SHARDS, text("shards/.hidden", "")
        ),
        "listdir of the root": Case("VALUE = len(os.listdir())", nothing, text("x.txt", "")),
        "listdir by descriptor": Case(
            "VALUE = len(os.listdir(os.open('shards', os.O_RDONLY)))", SHARDS, text("shards/2", "")
        ),
    },
    "symbolic link": {
        "retargeted": Case(
            "VALUE = open('w.txt').read()",
            both(text("1.txt", "1"), text("2.txt", "2"), link("w.txt", "1.txt")),
            link("w.txt", "2.txt"),
        ),
        "readlink": Case(
            "VALUE = Path(os.readlink('w.txt')).stem",
            both(text("1.txt", "0"), text("2.txt", "0"), link("w.txt", "1.txt")),
            link("w.txt", "2.txt"),
        ),
        "folder": Case(
            "VALUE = open('d/w.txt').read()",
            both(text("OUT/1/w.txt", "1"), text("OUT/2/w.txt", "2"), link("d", "OUT/1")),
            link("d", "OUT/2"),
        ),
        "models": Case(
            "VALUE = (HERE / 'w.txt').read_text()",
            both(text("models/w.txt", "1"), symlinked_models),
            text("models/w.txt", "2"),
        ),
    },
    "file outside the workspace": {
        "absolute": edit("VALUE = open('OUT/w.txt').read()", "OUT/w.txt"),
        "relative": edit("VALUE = open('../outside/w.txt').read()", "OUT/w.txt"),
        "appears": Case(
            "VALUE = 2 if os.path.exists('OUT/w.txt') else 1", nothing, text("OUT/w.txt", "")
        ),
        "listing": Case("VALUE = len(os.listdir('OUT'))", nothing, text("OUT/w.txt", "")),
        "home": Case(
            "p = Path.home() / '.cache/w.txt'; VALUE = p.read_text() if p.exists() else 1",
            nothing,
            text("../home/.cache/w.txt", "2"),
        ),
        "weights beside a config": Case(
            "import json; from safetensors.torch import load_file\n"
            "VALUE = json.load(open('OUT/config.json')) * load_file('OUT/m.safetensors')['x']",
            both(
                text("OUT/config.json", "1"),
                lambda site: save_safetensors(site.outside / "m.safetensors", 1.0),
            ),
            lambda site: save_safetensors(site.outside / "m.safetensors", 2.0),
        ),
    },
    "module": {
        "of the workspace": Case(
            "import parts; VALUE = parts.NUMBER",
            text("models/parts.py", "NUMBER = 1  #"),
            text("models/parts.py", "NUMBER = 2  ##"),
        ),
        "in the root": Case(
            "import parts; VALUE = parts.NUMBER",
            text("models/parts.py", "NUMBER = 1"),
            text("parts.py", "NUMBER = 2"),
        ),
        "hidden by a library": Case(
            "import small_lib; VALUE = small_lib.NUMBER",
            text("models/small_lib.py", "NUMBER = 2"),
            distribution("1"),
        ),
        "the package's own": Case(
            "from . import NUMBER; VALUE = NUMBER",
            text("models/__init__.py", "NUMBER = 1"),
            text("models/__init__.py", "NUMBER = 2"),
        ),
        "the package, looked for in vain": Case(
            "VALUE = getattr(sys.modules['models'], 'NUMBER', 1)",
            nothing,
            text("models/__init__.py", "NUMBER = 2"),
        ),
        "relative": Case(
            "from . import parts; VALUE = parts.NUMBER",
            text("models/parts.py", "NUMBER = 1  #"),
            text("models/parts.py", "NUMBER = 2  ##"),
        ),
        "looked for in vain": Case(
            "try: import small_lib; VALUE = small_lib.NUMBER\nexcept ImportError: VALUE = 1",
            nothing,
            distribution("2"),
        ),
        "of a package": Case(
            "import pkgutil, parts; VALUE = len(list(pkgutil.iter_modules(parts.__path__)))",
            text("parts/__init__.py", ""),
            text("parts/new.py", ""),
        ),
        "data of a package": Case(
            "from importlib import resources\n"
            "VALUE = (resources.files('parts') / 'w.txt').read_text()",
            both(text("parts/__init__.py", ""), text("parts/w.txt", "1")),
            text("parts/w.txt", "2"),
        ),
    },
    "library": {
        "upgraded": Case(
            "import small_lib; VALUE = small_lib.NUMBER", distribution("1"), distribution("2")
        ),
        "by import_module": Case(
            "import importlib; VALUE = importlib.import_module('small_' + 'lib').NUMBER",
            distribution("1"),
            distribution("2"),
        ),
        "its version": Case(
            "from importlib.metadata import version; VALUE = version('small-lib')[0]",
            distribution("1"),
            distribution("2"),
        ),
        "entry points": Case(
            "from importlib.metadata import entry_points\n"
            "VALUE = 2 if entry_points(group='small') else 1",
            nothing,
            both(distribution("2"), entry_point),
        ),
        "not installed": Case(
            "from importlib.metadata import version, PackageNotFoundError\n"
            "try: VALUE = version('small-lib')[0]\nexcept PackageNotFoundError: VALUE = 1",
            nothing,
            distribution("2"),
        ),
        "editable": Case(
            "sys.path.append('OUT'); import mylib; VALUE = mylib.NUMBER",
            text("OUT/mylib/__init__.py", "NUMBER = 1"),
            text("OUT/mylib/__init__.py", "NUMBER = 2"),
        ),
    },
    "environment variable": {
        "os.environ": environment("VALUE = os.environ['CHECKPOINT']"),
        "os.getenv": environment("VALUE = os.getenv('CHECKPOINT')"),
        "os.environb": environment("VALUE = os.environb[b'CHECKPOINT']"),
        "in": Case("VALUE = 2 if 'CHECKPOINT' in os.environ else 1", variable(None), variable("")),
        "repr": Case("VALUE = 2 if 'CHECKPOINT' in repr(os.environ) else 1", *ONE_MORE),
        "iteration": environment("VALUE = dict(os.environ).get('CHECKPOINT')"),
        "a new one": Case(
            "VALUE = len([k for k in os.environ if k == 'CHECKPOINT']) + 1",
            variable(None),
            variable("1"),
        ),
    },
    "subprocess": {
        "its file": edit(SUBPROCESS.format("['cat', 'w.txt']"), "w.txt"),
        "a shell": edit("VALUE = os.popen('cat w.txt').read()", "w.txt"),
        "its environment": environment(SUBPROCESS.format("['printenv', 'CHECKPOINT']")),
        "its program": Case(
            SUBPROCESS.format("['./tool']"),
            lambda site: script(site, "1"),
            lambda site: script(site, "2"),
        ),
        "Python": edit(
            SUBPROCESS.format("[sys.executable, '-c', \"print(open('w.txt').read())\"]"), "w.txt"
        ),
    },
}


def script(site: Site, value: str) -> None:
    path = site.root / "tool"
    path.write_text(f"#!/bin/sh\necho {value}\n")
    path.chmod(0o755)


def slow_ones(names: Iterable[str], quick: str) -> list:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names if name != quick]


@contextmanager
def own_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def check(site: Site, case: Case, kernel: bool) -> None:
    """Build, change, build, and compare with a build that starts from scratch."""
    with own_environment():
        case.before(site)
        site.write(case.code)
        _, before = build(site.workspace(), kernel)
        if kernel:
            assert build(site.workspace(), kernel) == ("up-to-date", before)
        case.change(site)
        _, after = build(site.workspace(), kernel)
        _, truth = build(site.workspace("empty"), kernel)
    assert truth != before, "the change changes nothing"
    assert after == truth


kernel_view = pytest.mark.skipif(not has_kernel_view(), reason="the kernel can't be asked")
QUICK = {
    "dir_fd",
    "safetensors",
    "exists",
    "glob",
    "models",
    "hidden by a library",
    "the package, looked for in vain",
    "its file",
}
# With Python's view only, a few cases of each kind; all with EXPORTER_INPUTS=all.
EACH = None if os.environ.get("EXPORTER_INPUTS") == "all" else 2


def marked(most: int | None) -> list:
    """Return the cases: some quick ones and, as slow tests, the first of each kind."""
    cases = []
    for kind, names in CASES.items():
        for number, name in enumerate(list(names)[:most]):
            marks = [pytest.mark.slow]
            if name in QUICK and most is None:
                marks = []
            elif number:
                marks = [pytest.mark.slow, pytest.mark.release]
            cases.append(pytest.param(kind, name, marks=marks, id=f"{kind}: {name}"))
    return cases


@kernel_view
@pytest.mark.parametrize(("kind", "name"), marked(None))
def test_change_is_seen_by_the_kernel(site, kind, name):
    check(site, CASES[kind][name], kernel=True)


@pytest.mark.parametrize(("kind", "name"), marked(EACH))
def test_change_is_seen_by_audit_events(site, kind, name):
    check(site, CASES[kind][name], kernel=False)


# The table of docs/concepts/cache.md


def test_table_of_the_docs_names_each_kind():
    text = (REPOSITORY / "docs" / "concepts" / "cache.md").read_text()
    table = text.partition("| what an exporter reads |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|`]+?) \|", table, re.MULTILINE)
    assert set(rows) - {"---"} == {*CASES, *UNFOLLOWED}


@kernel_view
def test_file_in_shared_memory_counts(site):
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm") as file:
        site.write(f"VALUE = open({file.name!r}).read()")
        for number in "12":
            file.seek(0)
            file.write(number)
            file.flush()
            assert build(site.workspace())[0] == "stale"
            assert build(site.workspace())[0] == "up-to-date"


def test_data_in_a_virtual_environment_count(site, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(site.outside))
    places = Places(site.workspace())
    assert places.wanted(str(site.outside / "share" / "w.txt"))
    assert not places.wanted(str(site.outside / "bin" / "python"))


@pytest.mark.parametrize("where", ["", "cache"])
def test_only_what_the_store_writes_is_no_input(site, where):
    places = Places(replace(site.workspace(), store=Store(site.root / where)))
    folder = site.root / where
    assert places.wanted(str(folder / "w.txt")) and places.wanted(str(folder / "more" / "w.txt"))
    assert not places.wanted(str(folder / "blobs" / "ab" / "c"))
    (site.root / "cache" / "blobs").mkdir(parents=True)
    assert "cache" not in (places.names(str(site.root)) or ()) or not where
    assert "blobs" not in (places.names(str(folder)) or ())


def test_other_virtual_environments_are_not_walked(site):
    both(text(".tox/py/pyvenv.cfg", ""), text(".tox/py/lib/torch.py", ""), text("w.txt", ""))(site)
    found = [path for _, path in Places(site.workspace()).walk(str(site.root))]
    assert str(site.root / "w.txt") in found and not any("torch" in each for each in found)


@kernel_view
def test_name_that_is_not_utf8_exports_each_time(site):
    (site.root / os.fsdecode(b"w\xff.txt")).write_text("1")
    site.write("VALUE = open(b'w\\xff.txt').read()")
    build(site.workspace())
    assert build(site.workspace())[0] == "stale"


# Inputs that can't be followed

UNFOLLOWED = {
    "network": "import socket\ntry: socket.create_connection(('127.0.0.1', 9))\n"
    "except OSError: VALUE = 1",
    "clock": "import datetime; VALUE = datetime.datetime.now().year",
    "random numbers": "import numpy; VALUE = numpy.random.default_rng().random()",
    "machine": "import platform; VALUE = len(platform.node())",
    "file times": "VALUE = os.stat(__file__).st_mtime % 7",
}


@pytest.mark.parametrize("kind", ["clock", *slow_ones(UNFOLLOWED, "clock")])
def test_what_cannot_be_followed_exports_each_time(site, kind):
    site.write(UNFOLLOWED[kind])
    assert build(site.workspace())[0] == "stale"
    status = export_status(Plan(site.workspace()), "a")
    assert status.state == "stale"
    assert status.reason.startswith("exported every time: models/a.py")
    assert status.reason.endswith("declare INPUTS to reuse the export")
    assert status.reason in "\n".join(explain(Plan(site.workspace()), ["p"]))
    site.write(UNFOLLOWED[kind], inputs="INPUTS = []")
    assert build(site.workspace())[0] == "stale"
    assert build(site.workspace())[0] == "up-to-date"


@pytest.mark.parametrize(
    "code",
    [
        "from time import time as t; t()",
        "import time; f = time.perf_counter_ns",
        "from datetime import date; date.today()",
        "import uuid; uuid.uuid4()",
        "from secrets import token_hex; token_hex()",
        "from numpy.random import default_rng as r; r(seed=None)",
        "import random; random.Random()",
        "import os; os.urandom(1)",
        "open('/dev/urandom', 'rb')",
        "open('/proc/self/environ')",
    ],
)
def test_chance_is_found_in_text(tmp_path, code):
    path = tmp_path / "x.py"
    path.write_text(f"\n{code}")
    assert [line.partition(" reads ")[0] for line in find_nondeterminism(path, "x.py")] == [
        "x.py:2"
    ]


def test_every_name_of_chance_is_found_in_text(tmp_path):
    """Most modules aren't parsed, since their text contains no such name."""
    path = tmp_path / "x.py"
    for name in (*nondeterminism._SOURCES, *nondeterminism._SEEDED):
        module, _, attribute = name.rpartition(".")
        for text in (f"import {name.split('.')[0]}\n{name}()", f"from {module} import {attribute}"):
            path.write_text(f"{text} as x\nx()" if text.startswith("from") else text)
            assert [*find_nondeterminism(path, "x.py")], text
    path.write_text("import time\n\uff54ime.time()", encoding="utf-8")  # full width, the same name
    assert [*find_nondeterminism(path, "x.py")]


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np; np.random.default_rng(0); np.random.rand()",
        "import random; random.seed(1); random.random()",
        "import torch; torch.manual_seed(0); torch.rand(1)",
        "import time; time.sleep(0)",
        "class time: pass\ntime.time",
    ],
)
def test_seeded_generators_are_no_chance(tmp_path, code):
    path = tmp_path / "x.py"
    path.write_text(code)
    assert not [*find_nondeterminism(path, "x.py")]


# INPUTS


DECLARED = {
    "files": ("VALUE = open('weights/w.txt').read()", "['weights/**']"),
    "a folder": ("VALUE = len(os.listdir('weights'))", "['weights']"),
    "glob": ("VALUE = len(list(Path('weights').glob('*.txt')))", "['weights/*.txt']"),
    "outside": ("VALUE = open('OUT/o.txt').read()", "['../outside/*']"),
    "home": ("VALUE = (Path.home() / 'h.txt').read_text()", "['~/h.txt']"),
    "variable": ("VALUE = os.environ.get('CHECKPOINT', 1)", "('env:CHECKPOINT',)"),
    "library": ("import small_lib; VALUE = small_lib.NUMBER", "['lib:numpy']"),
    "module": ("import parts; VALUE = parts.NUMBER", "[]"),
    "process": (SUBPROCESS.format("['cat', 'weights/w.txt']"), "['weights/*']"),
}
HOME = text("../home/h.txt", "1")
FILES = both(text("weights/w.txt", "1"), text("OUT/o.txt", "1"), text("parts.py", "NUMBER = 1"))


@kernel_view
@pytest.mark.parametrize("name", ["process", *slow_ones(DECLARED, "process")])
def test_declared_inputs_are_all_that_may_be_read(site, name):
    code, inputs = DECLARED[name]
    both(FILES, HOME, distribution("1"))(site)
    site.write(code, f"INPUTS = {inputs}")
    build(site.workspace())
    assert build(site.workspace())[0] == "up-to-date"
    if name in ("library", "module"):
        return
    site.write(code, "INPUTS = []")
    with pytest.raises(
        SourceError,
        match=r"^models/a.py: reads files that INPUTS does not name: "
        r"\S+",
    ):
        build(site.workspace())


@kernel_view
def test_all_that_is_read_beside_is_one_line(site):
    FILES(site)
    site.write(
        "os.getenv('CHECK' + 'POINT'); os.path.exists('none'); os.listdir('OUT')\n"
        "VALUE = open('weights/w.txt').read()",
        "INPUTS = []",
    )
    with pytest.raises(SourceError) as error:
        build(site.workspace())
    names = str(error.value).partition("name: ")[2].split(", ")
    assert names == [str(site.outside), "env:CHECKPOINT", "none", "weights/w.txt"]


def test_declared_file_that_is_not_read_counts(site):
    FILES(site)
    site.write("VALUE = 1", "INPUTS = ['weights/**']")
    build(site.workspace())
    text("weights/new.txt", "1")(site)
    assert build(site.workspace())[0] == "stale"


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ("INPUTS = [x for x in 'ab']", ":5: INPUTS must be a list of string literals"),
        ("INPUTS = 'weights'", ":5: INPUTS must be a list of string literals"),
        ("INPUTS = [1]", ":5: INPUTS must be a list of string literals"),
        ("INPUTS = ['']", ":5: INPUTS: '' is not a path"),
        ("INPUTS = ['env:']", ":5: INPUTS: 'env:' is not the name of a variable"),
        ("INPUTS = ['lib:a b']", ":5: INPUTS: 'lib:a b' is not the name of a distribution"),
        ("INPUTS = ['lib:no-such-lib']", ": INPUTS: 'lib:no-such-lib' is not installed"),
        ("INPUTS = ['no/**']", ": INPUTS: 'no/**' can't be an input"),
        ("INPUTS = ['build/**']", ": INPUTS: 'build/**' can't be an input"),
    ],
)
def test_mistake_in_inputs_is_one_line(site, inputs, what):
    site.write("VALUE = 1", inputs)
    text("build/x.txt", "")(site)
    (problem,) = Plan(site.workspace()).problems("p")
    assert f"models/a.py{what}" in str(problem)
    with pytest.raises(PipelineError):
        export_status(Plan(site.workspace()), "a")


# Between checkouts


def test_checkouts_with_different_files_share_no_export(tmp_path, monkeypatch):
    code = "VALUE = 2 if Path('w.pt').exists() else 1"
    found = []
    for name, there in (("without", False), ("with", True), ("again", False)):
        site = make_site(tmp_path / name)
        monkeypatch.chdir(site.root)
        site.write(code)
        if there:
            text("w.pt", "")(site)
        workspace = replace(open_workspace(site.root), store=Store(tmp_path / "store"))
        found.append(build(workspace))
    assert [state for state, _ in found] == ["stale", "stale", "up-to-date"]
    assert found[0][1] == found[2][1] != found[1][1]


@pytest.mark.parametrize("runs", [1, [1], [{"files": 1}], [{"files": [1]}], [{"no": ["x"]}]])
def test_forged_record_of_reads_is_none(runs):
    assert parse_records({"runs": runs}) == []


def test_forged_record_has_no_kernel_file_read(site):
    places = Places(site.workspace())
    for name in ("/proc/kcore", "/proc/self/../version", "../../../../../../../../proc/version"):
        assert places.observe("file", places.locate(name)) in ("special", None)


# Messages


@pytest.mark.parametrize(
    ("code", "before", "change", "line"),
    [
        (
            "VALUE = os.path.exists('models/w.pt')",
            nothing,
            text("models/w.pt", ""),
            "models/w.pt appeared",
        ),
        ("VALUE = len(os.listdir('shards'))", SHARDS, text("shards/2", ""), "listing of shards/"),
        ("VALUE = os.getenv('CHECKPOINT', 1)", variable("1"), variable("2"), "variable CHECKPOINT"),
        (
            "VALUE = open('OUT/x.py').read()",
            text("OUT/x.py", "1"),
            text("OUT/x.py", "2"),
            "x.py (outside the workspace, ",
        ),
        (
            "try: import mine; VALUE = 2\nexcept ImportError: VALUE = 1",
            nothing,
            text("models/mine.py", ""),
            "module mine is in models/",
        ),
    ],
)
def test_miss_is_explained_by_its_kind(site, code, before, change, line):
    with own_environment():
        before(site)
        site.write(code)
        build(site.workspace())
        change(site)
        identity.cache_clear()
        assert line in "\n".join(explain(Plan(site.workspace()), ["p"]))
        assert line in export_status(Plan(site.workspace()), "a").reason


# An installation without the feature that traces exporters


@pytest.fixture
def untraced(monkeypatch):
    features = [feature for feature in find_features() if feature.name != "tracing"]
    monkeypatch.setattr(moments, "find_features", lambda: features)


@pytest.mark.parametrize("name", ["data.txt", "models/factor.py"])
def test_without_tracing_what_is_declared_and_imported_counts(site, untraced, name):
    text("data.txt", "2")(site)
    text("models/factor.py", "FACTOR = 3\n")(site)
    code = "import factor\nVALUE = float(open('data.txt').read()) * factor.FACTOR"
    site.write(code, "INPUTS = ['data.txt']")
    state, before = build(site.workspace())
    assert build(site.workspace()) == ("up-to-date", before)
    path = site.root / name
    path.write_text(f"{path.read_text().strip()}1\n")
    after_state, after = build(site.workspace())
    assert (state, after_state) == ("stale", "stale")
    assert after != before


@pytest.mark.slow
def test_without_tracing_an_exporter_that_declares_nothing_runs_each_time(site, untraced):
    site.write("VALUE = 1")
    build(site.workspace())
    status = export_status(Plan(site.workspace()), "a")
    assert status.state == "stale"
    assert status.reason == (
        "exported every time: without the feature tracing, the files that models/a.py reads are "
        "unknown; declare INPUTS to reuse the export"
    )


@pytest.mark.slow
def test_without_tracing_a_declared_file_that_changes_meanwhile_is_refused(site, untraced):
    text("data.txt", "2")(site)
    code = "VALUE = 1\nopen('data.txt', 'w').write('changed')"
    site.write(code, "INPUTS = ['data.txt']")
    with pytest.raises(SourceError, match=r"^data.txt: changed while the exporter ran; run again"):
        build(site.workspace())
