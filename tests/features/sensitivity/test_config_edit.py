"""Members are inserted into YAML, and every other byte stays."""

import pytest
import yaml

from pipeline.features.sensitivity.config_edit import add_members

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
    changed = add_members(text, path, keys, members)
    assert line in changed.splitlines()
    before, after = text.splitlines(), changed.splitlines()
    kept = [written for written in before if written in after]
    assert len(kept) >= len(before) - 1
    data = yaml.safe_load(changed)
    for key in [part for part in path.split(".") if part] + keys:
        data = data[key]
    assert data.items() >= members.items()


def test_no_mapping_is_no_place():
    assert add_members("methods: [a]\n", "methods", ["modules"], {"head": "none"}) is None
    assert add_members(FLOW, "nowhere", [], {"head": "none"}) is None
    # A value on lines of its own is not replaced where comments would go.
    nested = "modules:\n  head:  # slow\n    dynamic: true\n"
    assert add_members(nested, "modules", [], {"head": "none"}) is None
    plain = nested.replace("  # slow", "")
    assert add_members(plain, "modules", [], {"head": "none"}) == "modules:\n  head: none\n"


def test_a_file_without_its_last_line_end():
    assert add_members("a:\n  b: 1", "a", [], {"c": "none"}) == "a:\n  b: 1\n  c: none"
