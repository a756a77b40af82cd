"""`doit rebuild` builds again without any cache, and reports packages that differ in any byte."""

import json

import pytest

from pipeline.features.rebuild.rebuild import compare_folders, first_difference
from tests.support.patches import patched

BLOB = {"digest": "1" * 64, "size": 4}
PARTS = {"program": BLOB, "constants": [BLOB, BLOB], "delegates": [BLOB]}


def folder(path, pte=b"package", manifest=None, **parts):
    path.mkdir()
    (path / "asr.pte").write_bytes(pte)
    told = {
        "objects": {"encode": {"object": str(parts), "parts": PARTS | parts}},
        "files": {"asr.pte": {"size": len(pte)}},
        "methods": {"encode": {"delegation": {"nodes": 3}}},
        **(manifest or {}),
    }
    (path / "manifest.json").write_text(json.dumps(told, sort_keys=True))
    return path


def told(tmp_path, *args, names=("asr.pte", "manifest.json"), **changes):
    ours, theirs = folder(tmp_path / "ours"), folder(tmp_path / "theirs", *args, **changes)
    return list(compare_folders(ours, theirs, names))


OTHER = {"digest": "2" * 64, "size": 4}


def test_the_same_bytes_are_no_difference(tmp_path):
    assert told(tmp_path) == []


def test_a_file_that_differs_is_told_with_the_place(tmp_path):
    lines = told(tmp_path, b"packet!!")
    assert lines[0] == "asr.pte: 7 bytes, now 8; differs from byte 4 on"
    assert lines[1].startswith("manifest.json: ")


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"program": OTHER}, "program"),
        ({"constants": [BLOB, OTHER]}, "constants 1 of 2"),
        ({"delegates": []}, "1 delegates, now 0"),
        ({"constants": [OTHER, OTHER], "program": OTHER}, "constants 0, 1 of 2, program"),
    ],
)
def test_the_methods_whose_objects_differ_are_told(tmp_path, parts, what):
    assert told(tmp_path, **parts)[-1] == f"encode: compiled to a different object: {what}"


def test_what_else_a_manifest_says_is_told(tmp_path):
    methods = {"encode": {"delegation": {"nodes": 4}}, **{f"m{n}": {} for n in range(6)}}
    lines = told(tmp_path, manifest={"methods": methods})
    assert "manifest: methods.encode.delegation.nodes: 3 -> 4" in lines
    assert lines[-1] == "manifest: and 2 more differences"


def test_files_that_come_and_go_are_told(tmp_path):
    assert told(tmp_path, names=("asr.pte", "manifest.json", "w.ptd")) == [
        "w.ptd is no longer made"
    ]
    ours = tmp_path / "ours"
    (ours / "asr.pte").unlink()
    assert list(compare_folders(ours, tmp_path / "theirs", ["manifest.json"])) == ["asr.pte is new"]


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [(b"", b"a", 0), (b"ab", b"ab", 2), (b"abc", b"abd", 2), (b"ab", b"abc", 2)],
)
def test_the_first_byte_that_differs(tmp_path, monkeypatch, one, other, place):
    monkeypatch.setattr("pipeline.features.rebuild.rebuild._PIECE", 2)
    (tmp_path / "one").write_bytes(one)
    (tmp_path / "other").write_bytes(other)
    assert first_difference(tmp_path / "one", tmp_path / "other") == place


@pytest.mark.slow
def test_a_package_is_built_again_from_its_sources_alone(built):
    left = built.root / "build" / ".rebuild-killed"
    left.mkdir()
    (left / "lock").touch()
    before = built.snapshot()
    used = {path: path.stat().st_mtime_ns for path in built.store.rglob("*")}
    assert built.doit("rebuild", timeout=900) == 0, built.output
    lines = built.output.splitlines()
    assert {tuple(line.split()[:3]) for line in lines[:-1]} == {
        ("built", "export", "pair"),
        ("built", "compile", "pair/encode"),
        ("built", "compile", "pair/decode"),
        ("built", "link", "pair"),
    }
    assert lines[-1] == "pair: the rebuild has the same bytes in 5 files"
    ignored = {built.root / ".doit.sqlite3", *built.root.glob("build/.*.json")}
    after = built.snapshot()
    assert not left.exists()
    changed = {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    assert {p for p in changed if p.is_file()} <= ignored, changed
    assert not list((built.root / "build").glob(".rebuild-*"))
    made = [p for p in built.store.rglob("*") if used.get(p) is None]
    assert not made


# An input that no tracing detects: the clock, read by native code.
CLOCK = """
import ctypes
_load = torch.manual_seed

def _nanoseconds():
    now = (ctypes.c_long * 2)()  # a timespec
    ctypes.CDLL(None).clock_gettime(0, now)
    return now[1]

torch.manual_seed = lambda seed: _load(_nanoseconds())
"""


@pytest.mark.slow
def test_exports_alone_are_run_again_and_compared(built):
    assert built.doit("rebuild", "--exports") == 0, built.output
    lines = built.output.splitlines()
    assert lines[1] == "pair: exported again, the same"
    assert [line.split()[:2] for line in lines[2:]] == [
        ["encode:", "program"],
        ["decode:", "program"],
    ]
    exporter = built.root / "models" / "pair.py"
    text = exporter.read_text()
    exporter.write_text(text.replace("import torch\n", f"import torch\n{CLOCK}", 1))
    assert built.doit("export") == 0, built.output
    assert built.doit("rebuild", "--exports") == 1
    exporter.write_text(text)
    assert "pair: exported again, it differs" in built.output
    assert " (it was " in built.output
    assert "pair: its exporter depends on something that no key contains" in built.output


OTHER_WEIGHTS = """
_load = load_program

def load_program(*arguments, **options):
    program = _load(*arguments, **options)
    for tensor in program.state_dict.values():
        tensor.data.add_(1)
    return program
"""


@pytest.mark.slow
def test_another_package_is_told_and_fails(built, tmp_path):
    """As if the current package had been compiled from other weights."""
    changes = patched(tmp_path, "pipeline.run.build.load", OTHER_WEIGHTS)
    assert built.doit("lower", **changes | {"PATCH": ""}) == 0  # Python's start is an input
    assert built.doit("rebuild", "pair", timeout=900, **changes) == 1, built.output
    assert "pair: the rebuild is a different package" in built.output
    assert "  encode: compiled to a different object: constants " in built.output
    assert "rebuild: 1 of 1 packages can't be reproduced: pair" in built.output
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    assert built.doit("rebuild") == 1
    assert "; run `doit lower:pair` first" in built.output
