"""Members are inserted into YAML, and every other byte stays."""

import pytest
import yaml

from pipeline.features.config_edits.edit import edit_members

FLOW = """\
# One comment,
methods:
  forward:
    quantize: {quantizer: xnnpack, per_channel: true}   # and another
    partitioners: [xnnpack]
"""
BLOCK = """\
methods:
  forward:
    quantize:
      quantizer: xnnpack
      modules:
        head: none   # a comment

# Behind it.
validate: {min_sqnr: 20}
"""
QUANTIZE = {"quantizer": "xnnpack", "dynamic": True}
DEFAULTS = "defaults: {quantize: {quantizer: xnnpack}}\nmethods: {encode: {}, decode: {}}\n"


@pytest.mark.parametrize(
    ("text", "path", "keys", "members", "line"),
    [
        (
            FLOW,
            "methods.forward.quantize",
            ["modules"],
            {"head": "none"},
            "    quantize: {quantizer: xnnpack, per_channel: true, modules: {head: none}}   # and "
            "another",
        ),
        (
            BLOCK,
            "methods.forward.quantize.modules",
            [],
            {"layers.0": "none"},
            "        layers.0: none",
        ),
        (
            BLOCK,
            "methods.forward.quantize",
            ["operators"],
            {"add": "none"},
            "      operators: {add: none}",
        ),
        (
            BLOCK,
            "",
            ["methods", "forward", "quantize", "more"],
            {f"encoder.layer.{n}.output.dense": "none" for n in range(3)},
            "        encoder.layer.2.output.dense: none",
        ),
        (
            DEFAULTS,
            "",
            ["methods", "decode", "quantize", "modules"],
            {"0": "none"},
            "methods: {encode: {}, decode: {quantize: {modules: {'0': none}}}}",
        ),
        (
            BLOCK,
            "methods.forward.quantize.modules",
            [],
            {"head": {"dynamic": True}},
            "        head: {dynamic: true}   # a comment",
        ),
    ],
)
def test_members_are_added_and_all_else_stays(text, path, keys, members, line):
    changed = edit_members(text, path, keys, members)
    assert line in changed.splitlines()
    before, after = text.splitlines(), changed.splitlines()
    kept = [written for written in before if written in after]
    assert len(kept) >= len(before) - 1
    data = yaml.safe_load(changed)
    for key in [part for part in path.split(".") if part] + keys:
        data = data[key]
    assert data.items() >= members.items()


def test_no_mapping_is_no_place():
    assert edit_members("methods: [a]\n", "methods", ["modules"], {"head": "none"}) is None
    assert edit_members(FLOW, "nowhere", [], {"head": "none"}) is None
    # A value on separate lines isn't replaced if that would remove comments.
    nested = "modules:\n  head:  # slow\n    dynamic: true\n"
    assert edit_members(nested, "modules", [], {"head": "none"}) is None
    plain = nested.replace("  # slow", "")
    assert edit_members(plain, "modules", [], {"head": "none"}) == "modules:\n  head: none\n"


def test_a_file_without_its_last_line_end():
    assert edit_members("a:\n  b: 1", "a", [], {"c": "none"}) == "a:\n  b: 1\n  c: none"


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("a:\n  b: 1  # why\n", "a.b", 2, "a:\n  b: 2  # why\n"),
        ("a: {b: 1, c: [x]} # why\n", "a.c", [], "a: {b: 1, c: []} # why\n"),
        ("a:\n  b:\n    - x\n    - y  # why\nc: 1\n", "a.b", ["z"], "a:\n  b: [z]  # why\nc: 1\n"),
        ("a:\n  b: 1\n\n# next\nc: 1\n", "a.q", True, "a:\n  b: 1\n  q: true\n\n# next\nc: 1\n"),
        ("a: {}\n", "a.q", QUANTIZE, "a: {q: {quantizer: xnnpack, dynamic: true}}\n"),
        ("a: { b: 1 }", "a.q", None, "a: { b: 1, q: null}"),
        ("a: 1", "e.f.g", 2, "a: 1\ne: {f: {g: 2}}"),
        ("a:\n", "a.b", 2, "a: {b: 2}\n"),
        ("a:\n  b: 1\n  # why\n  c: 2\n", "a.c", ..., "a:\n  b: 1\n  # why\n"),
        ("a:\n  c:\n    d: 2\n  b: 1\n", "a.c", ..., "a:\n  b: 1\n"),
        ("a:\n  c: 2\n", "a.c", ..., "a:\n  {}\n"),
        ("a: {b: 1, c: 2}\n", "a.c", ..., "a: {b: 1}\n"),
        ("a: {c: 2, b: 1}\n", "a.c", ..., "a: {b: 1}\n"),
        ("a: {b: 1}\n", "a.c", ..., "a: {b: 1}\n"),
        ("x: &w [1]\na: {b: *w, c: 1}\n", "a.b", 3, "x: &w [1]\na: {b: 3, c: 1}\n"),
        ("a:\r\n  b: 1 # w\r\n", "a.b", 2, "a:\r\n  b: 2 # w\r\n"),
        ("a:\n  t: |\n    long\n    text\n  b: 1\n", "a.t", "x", "a:\n  t: x\n  b: 1\n"),
    ],
)
def test_only_the_value_changes(before, path, value, after):
    *keys, last = path.split(".")
    assert edit_members(before, "", keys, {last: value}) == after
