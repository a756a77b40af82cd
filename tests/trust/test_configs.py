"""Hostile configs, baselines and settings: a one-line error each, and other packages are built."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.features.gates.baseline import read_baseline
from pipeline.plan.plan import Plan
from pipeline.store.errors import ConfigErrors, PipelineError
from pipeline.store.file_digests import FileDigests
from pipeline.store.setting_table import find_settings, variable_of
from pipeline.store.workspace import open_workspace
from tests.support.bench import REPOSITORY
from tests.support.setting_variables import find_variables

GOOD = "model: m\nmethods: {f: {partitioners: []}}\n"
OUTSIDE = "root:x:0:0:AKIA-outside-of-the-workspace\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A workspace with one valid config, and a file outside it."""
    for variable in (*find_variables().values(), "PTE_PIPELINE_UNTRUSTED"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    (tmp_path / "outside").write_text(OUTSIDE)
    root = tmp_path / "workspace"
    for folder in ("partition_configs", "models", "inputs", "baselines"):
        (root / folder).mkdir(parents=True)
    (root / "models" / "m.py").write_text("def export_methods(): ...\n")
    (root / "partition_configs" / "good.yaml").write_text(GOOD)
    return root


def look(root):
    """Plan a workspace; return the problems by package, each a single printable line."""
    plan = Plan(open_workspace(root))
    found = {package: [str(p) for p in plan.problems(package)] for package in plan.packages}
    for line in (line for lines in found.values() for line in lines):
        assert line.startswith("partition_configs/") and line.isprintable() and len(line) < 3000
        assert "AKIA" not in line and "root:x" not in line
    assert found.pop("good") == []
    return found


FILES = {
    "empty.yaml": lambda path: path.write_bytes(b""),
    "nul.yaml": lambda path: path.write_bytes(b"model: m\0\n"),
    "zeros.yaml": lambda path: path.write_bytes(b"\0" * 1000),
    "bom.yaml": lambda path: path.write_bytes(b"\xef\xbb\xbfmodel: [\n"),
    "utf16.yaml": lambda path: path.write_bytes(GOOD.encode("utf-16")),
    "latin.yaml": lambda path: path.write_bytes(b"model: m\xe9\n"),
    "large.yaml": lambda path: path.write_bytes(GOOD.encode() + b"#" * (1 << 20)),
    "folder.yaml": Path.mkdir,
    "pipe.yaml": os.mkfifo,
    "nowhere.yaml": lambda path: path.symlink_to("missing.yaml"),
    "loop.yaml": lambda path: path.symlink_to(path.name),
    "outside.yaml": lambda path: path.symlink_to(path.parents[2] / "outside"),
    "device.yaml": lambda path: path.symlink_to("/dev/zero"),
    "environ.yaml": lambda path: path.symlink_to("/proc/self/environ"),
    "a\nb.yaml": lambda path: path.write_text(GOOD),
    "\x1b[2Jx.yaml": lambda path: path.write_text(GOOD),
    "\u202egnp.yaml": lambda path: path.write_text(GOOD),
    b"\xff\xfe.yaml": lambda path: path.write_text(GOOD),
    "run.json.yaml": lambda path: path.write_text(GOOD),
    "-x.yaml": lambda path: path.write_text(GOOD),
    "n" * 200 + ".yaml": lambda path: path.write_text(GOOD),
    "chain.yaml": lambda path: (
        [(path.parent / f"_{n}.yaml").write_text(f"extends: _{n + 1}\n") for n in range(300)]
        and path.write_text(f"extends: _0\n{GOOD}")
    ),
    "bomb.yaml": lambda path: path.write_text(
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    ),
}


@pytest.mark.parametrize("name", FILES, ids=ascii)
def test_a_hostile_file_is_one_line(root, name):
    path = root / "partition_configs" / os.fsdecode(name)
    FILES[name](path)
    begin = time.process_time()
    ((package, lines),) = look(root).items()
    assert len(lines) == 1 and package.isprintable()
    assert time.process_time() - begin < 5


LONG = [
    "operators: [%s]" % ("x/" * 300 + "x.py"),
    "operators: [%s]" % ("x" * 300),
    "operators: [%s]" % ("x/" * 100_000),
    "emit: {passes: ['%s:x']}" % ("x" * 300),
    "emit: {passes: ['%s:x']}" % ("x." * 100_000 + "x"),
    "emit: {memory_planning: {algorithm: '%s:x'}}" % ("x" * 300),
    "emit: {memory_planning: {algorithm: '%s:x'}}" % ("x" * 100_000),
]


@pytest.mark.parametrize("text", LONG, ids=lambda text: text[:40])
def test_a_name_that_no_file_can_have_is_one_line(root, text):
    """It used to stop all packages: `Path.is_file` raises."""
    (root / "partition_configs" / "p.yaml").write_text(f"{GOOD}{text}\n")
    assert len(look(root)["p"]) == 1


def test_a_library_that_a_config_may_not_name_is_not_read(root, monkeypatch):
    outside = root.parent / "outside.py"
    outside.write_text(OUTSIDE)
    hashed = []
    hash_file = FileDigests.hash
    monkeypatch.setattr(FileDigests, "hash", lambda s, p: hashed.append(p) or hash_file(s, p))
    for name in ("../outside.py", str(outside), "no_such.py"):
        (root / "partition_configs" / "p.yaml").write_text(f"{GOOD}operators: [{name}]\n")
        (line,) = look(root)["p"]
        assert "is neither in operators/ nor listed" in line
    assert not [path for path in hashed if path.name == outside.name]


PATHS = [
    *("../outside.npz", "/etc/x.npz", "inputs/../../outside.npz", "./x.npz", "inputs//x.npz"),
    *("inputs/a\0.npz", "x" * 300 + ".npz", "a/" * 3000 + "x.npz", "inputs/folder.npz", "\n.npz"),
    *("inputs/pipe.npz", "inputs/loop.npz", "inputs/out.npz", "deep/outside.npz", "~/x.npz"),
    *("file:///x.npz", "${HOME}.npz", "inputs/*.npz", "inputs/x.npz\n", "\\x.npz", "dev.npz"),
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ascii(path)[:40])
@pytest.mark.parametrize("form", ["examples", "calibration", "ini"])
def test_a_file_that_a_config_names_is_one_of_the_workspace(root, path, form):
    (root / "inputs" / "folder.npz").mkdir()
    (root / "inputs" / "loop.npz").symlink_to("loop.npz")
    (root / "inputs" / "out.npz").symlink_to(root.parent / "outside")
    (root / "dev.npz").symlink_to("/dev/zero")
    (root / "deep").symlink_to(root.parent)
    (root.parent / "outside.npz").write_text(OUTSIDE)
    os.mkfifo(root / "inputs" / "pipe.npz")
    for each in list(root.glob("*.npz")) + list((root / "inputs").iterdir()):
        each.with_suffix(".ini").symlink_to(each)
    method = {"partitioners": []}
    text = {"model": "m", "methods": {"f": method}}
    if form == "examples":
        text["validate"] = {"methods": {"f": {"examples": [path]}}}
    elif form == "calibration":
        method["quantize"] = {"quantizer": "xnnpack", "calibration": path}
    else:
        options = {"target": "ethos-u55-128", "config_ini": path.replace(".npz", ".ini")}
        method["partitioners"] = [{"ethos-u": options}]
    (root / "partition_configs" / "p.yaml").write_text(json.dumps(text))
    lines = look(root)["p"]
    assert any(word in line for line in lines for word in ("examples", "calibration", "config_ini"))


def test_links_lead_where_the_settings_say(root):
    (root.parent / "data").mkdir()
    numpy.savez(root.parent / "data" / "x.npz", x=numpy.zeros(1))
    (root / "inputs" / "far").symlink_to(root.parent / "data")
    named = "validate: {methods: {f: {examples: inputs/far/x.npz}}}\n"
    (root / "partition_configs" / "p.yaml").write_text(GOOD + named)
    assert "It is a link that leads out of the workspace; for one outside" in look(root)["p"][0]
    (root / "pyproject.toml").write_text('[tool.pte-pipeline]\ndata = ["../data"]\n')
    assert look(root)["p"] == []


DATA = [
    "{x: .nan}",
    "{x: .inf}",
    "{x: {1: a, b: 2}}",
    "{x: [[{true: 1}]]}",
    "{x: 0x" + "f" * 6000 + "}",
    "{x: " + "9" * 5000 + "}",
    "[1]",
    "text",
    "{1: 2}",
]


@pytest.mark.parametrize("options", DATA, ids=lambda text: text[:20])
def test_options_of_a_pass_are_data_that_a_key_can_hold(root, options):
    (root / "passes").mkdir()
    (root / "passes" / "fusions.py").write_text("class Fuse: pass\n")
    text = GOOD + f"emit: {{passes: [fusions:Fuse: {options}]}}\n"
    (root / "partition_configs" / "p.yaml").write_text(text)
    assert len(look(root)["p"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"matrix: {{{', '.join(f'a{n}: [1, 2, 3, 4, 5, 6, 7, 8]' for n in range(10))}}}\n",
        "matrix: {a: [1], exclude: [" + "{a: 2}, " * 3000 + "]}\n",
        "matrix: {a: [" + ", ".join(map(str, range(3000))) + "]}\n",
        "matrix: {a: ['" + "x" * 300 + "']}\n",
        "matrix: {a: ['../../x']}\n",
        "matrix: {a: [json]}\npackage: run.${matrix.a}\n",
        "emit: {external_files: {../x: [a]}}\n",
        "emit: {external_files: {" + "x" * 300 + ": [a]}}\n",
        "constant_methods: {" + "x" * 300 + ": 1}\n",
    ],
    ids=lambda text: text[:30],
)
def test_names_and_numbers_of_packages_have_limits(root, text):
    (root / "partition_configs" / "p.yaml").write_text(GOOD + text)
    begin = time.process_time()
    assert all(len(lines) >= 1 for lines in look(root).values())
    assert time.process_time() - begin < 5


BASELINES = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "outside": lambda path: path.symlink_to(path.parents[2] / "outside"),
    "environ": lambda path: path.symlink_to("/proc/self/environ"),
    "loop": lambda path: path.symlink_to(path.name),
    "binary": lambda path: path.write_bytes(os.urandom(2000) + b"\0\xff"),
    "large": lambda path: path.write_bytes(b"# " * (1 << 20)),
    "empty": lambda path: path.write_bytes(b""),
    "list": lambda path: path.write_text("- a\n"),
    "types": lambda path: path.write_text("size: [1]\ndigest: 5\nmethods: {f: 3}\nx\x1by: 1\n"),
}


@pytest.mark.parametrize("name", BASELINES)
def test_a_hostile_baseline_is_lines_that_name_it(root, name):
    path = root / "baselines" / "good.yaml"
    BASELINES[name](path)
    plan = Plan(open_workspace(root))
    plan._baseline("good")  # as in a run with nothing to do
    with pytest.raises(ConfigErrors) as caught:
        read_baseline(path)
    for line in str(caught.value).split("\n"):
        assert line.startswith("baselines/good.yaml") and line.isprintable()
        assert "AKIA" not in line


TABLES = [
    *("[tool]\npte-pipeline = 5", "tool = 5", "[[tool]]", "[tool]\npte-pipeline = []", "[[[", "\0"),
    *("[tool.pte-pipeline]\n\"a\\nb\" = 1", "[tool.pte-pipeline]\njobs = 0x" + "f" * 6000),
    *("[tool.pte-pipeline]\njobs = " + "9" * 5000, "a = " + "[" * 5000, "\ufefftool = 5"),
    *("[tool.pte-pipeline]\njobs = 1\njobs = 2", "[tool.pte-pipeline]\njobs = 1979-05-27"),
]  # fmt: skip


@pytest.mark.parametrize("text", TABLES, ids=lambda text: ascii(text)[:40])
def test_a_settings_table_of_any_form_is_one_line(root, text):
    (root / "pyproject.toml").write_text(text)
    _refused(root)


@pytest.mark.parametrize("name", ["folder", "pipe", "loop", "binary", "large"])
def test_a_settings_file_of_any_kind_is_one_line(root, name):
    BASELINES[name](root / "pyproject.toml")
    _refused(root)


def _refused(root, words="pyproject.toml: "):
    with pytest.raises(PipelineError) as caught:
        open_workspace(root)
    assert str(caught.value).startswith(words) and str(caught.value).isprintable()
    return str(caught.value)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**29, 10**31)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["a\0b", "a\nb", "\x1b[2J", "x" * 5000, "y" * 300, "", "~", "://", "s3://\n"])
    | st.sampled_from(["50GB", "3", "read-only", "A,B", "a b"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)  # fmt: skip


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool | float) else json.dumps(value)


@given(st.dictionaries(st.sampled_from([*find_settings()]), VALUES, min_size=1))
@settings(max_examples=150, deadline=None)
@example({"allow": False})
def test_settings_are_read_or_refused_in_one_line_each(tmp_path_factory, table):
    root = tmp_path_factory.mktemp("settings")
    lines = "".join(f"{name} = {_toml(value)}\n" for name, value in table.items())
    (root / "pyproject.toml").write_text(f"[tool.pte-pipeline]\n{lines}", errors="surrogateescape")
    try:
        open_workspace(root)
    except PipelineError as error:
        assert len(error.lines) <= len(table)
        for line in error.lines:
            assert line.startswith(("pyproject.toml: ", "tool.pte-pipeline"))
            assert line.isprintable()


@pytest.mark.parametrize("name", sorted(find_variables()))
@pytest.mark.parametrize("value", ["a\nb", "\x1b[2J", "x" * 5000, "9" * 5000, os.fsdecode(b"\xff")])
def test_variables_of_settings_are_read_or_refused_in_one_line(root, monkeypatch, name, value):
    monkeypatch.setenv("PTE_PIPELINE_REMOTE", "file:///x")
    if name not in ("signing_key", "trusted_keys"):
        monkeypatch.setenv("PTE_PIPELINE_REMOTE_TRUST", "unsigned")
    monkeypatch.setenv(variable_of(name), value)
    try:
        open_workspace(root)
    except PipelineError as error:
        assert str(error).startswith(variable_of(name)) and str(error).isprintable()


def _mutate(count, seed):
    done = subprocess.run(
        [sys.executable, "-m", "tests.trust.config_mutations", str(count), str(seed)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_mutations_run_nothing_and_read_and_write_nothing_outside():
    """To run more: `python -m tests.trust.config_mutations 5000`."""
    found = _mutate(200, 0)
    assert not found["first"], found["first"]


DAMAGED = [
    b"",
    b"{",
    b"[]",
    b"\0" * 99,
    b"\xff\xfe",
    b'{"link": 5}',
    b"[" * 9999,
    b'"x"',
    b"9" * 9999,
]


@pytest.mark.parametrize("content", [*DAMAGED, "flipped", "folder", "pipe"], ids=repr)
def test_damaged_records_of_the_workspace_are_as_good_as_none(root, content):
    plan = Plan(open_workspace(root))
    assert not plan.problems("good")
    plan.workspace.write_state("good", {"link": {"action": "0" * 64, "files": {}}})
    time.sleep(0.25)  # recently changed files aren't remembered
    plan = Plan(open_workspace(root))
    assert not plan.problems("good")
    plan.remember()
    state, files = root / "build" / ".state" / "good.json", root / "build" / ".files.json"
    assert plan.workspace.state("good") and files.is_file()
    for path in (state, files):
        whole = path.read_bytes()
        path.unlink()
        if content == "flipped":
            path.write_bytes(whole.replace(b'"', b"5", 40).replace(b"5", b'"', 39))
        elif isinstance(content, str):
            BASELINES[content](path)
        else:
            path.write_bytes(content)
    plan = Plan(open_workspace(root))
    assert plan.workspace.state("good") == {}
    assert look(root) == {}
