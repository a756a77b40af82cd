"""Values are put into config files whose other lines stay as they are."""

import pytest

from pipeline.features.tuning.edit import _Removal, put_value, write_choice
from pipeline.features.tuning.trials import Trial
from pipeline.store.errors import PipelineError
from tests.features.tuning.spaces import CONFIG, space_of, write_config

FLOW = {"quantizer": "xnnpack", "dynamic": True}


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("a:\n  b: 1  # why\n", "a.b", 2, "a:\n  b: 2  # why\n"),
        ("a: {b: 1, c: [x]} # why\n", "a.c", [], "a: {b: 1, c: []} # why\n"),
        ("a:\n  b:\n    - x\n    - y  # why\nc: 1\n", "a.b", ["z"], "a:\n  b: [z]  # why\nc: 1\n"),
        ("a:\n  b: 1\n\n# next\nc: 1\n", "a.q", True, "a:\n  b: 1\n  q: true\n\n# next\nc: 1\n"),
        ("a: {}\n", "a.q", FLOW, "a: {q: {quantizer: xnnpack, dynamic: true}}\n"),
        ("a: { b: 1 }", "a.q", None, "a: { b: 1, q: null}"),
        ("a: 1", "e.f.g", 2, "a: 1\ne: {f: {g: 2}}"),
        ("a:\n", "a.b", 2, "a: {b: 2}\n"),
        ("a:\n  b: 1\n  # why\n  c: 2\n", "a.c", _Removal, "a:\n  b: 1\n  # why\n"),
        ("a:\n  c:\n    d: 2\n  b: 1\n", "a.c", _Removal, "a:\n  b: 1\n"),
        ("a:\n  c: 2\n", "a.c", _Removal, "a:\n  {}\n"),
        ("a: {b: 1, c: 2}\n", "a.c", _Removal, "a: {b: 1}\n"),
        ("a: {c: 2, b: 1}\n", "a.c", _Removal, "a: {b: 1}\n"),
        ("a: {b: 1}\n", "a.c", _Removal, "a: {b: 1}\n"),
        ("x: &w [1]\na: {b: *w, c: 1}\n", "a.b", 3, "x: &w [1]\na: {b: 3, c: 1}\n"),
        ("a:\r\n  b: 1 # w\r\n", "a.b", 2, "a:\r\n  b: 2 # w\r\n"),
        ("a:\n  t: |\n    long\n    text\n  b: 1\n", "a.t", "x", "a:\n  t: x\n  b: 1\n"),
    ],
)
def test_only_the_value_changes(before, path, value, after):
    assert put_value(before, path.split("."), value) == after


def trial_of(choice):
    return Trial(1, choice, "pair-0123456789", {}, {}, (), ())


def test_a_trial_is_written_with_comments_kept(tmp_path):
    path = write_config(tmp_path)
    before = path.read_text()
    assert write_choice(space_of(path), trial_of((1, 1))) == (
        "partition_configs/pair.yaml: trial 1 is written"
    )
    quantize = "    quantize: {quantizer: xnnpack, per_channel: true}\n"
    expected = before.replace("[xnnpack]  # for all", "[]  # for all")
    expected = expected.replace(
        "    partitioners: [xnnpack]\n", f"    partitioners: [xnnpack]\n{quantize}"
    )
    assert path.read_text() == expected
    write_choice(space_of(path), trial_of((0, 0)))
    assert path.read_text() == before


def test_an_empty_alternative_is_written_out_where_the_defaults_have_a_value(tmp_path):
    config = CONFIG.replace("defaults:\n", "defaults:\n  quantize: {quantizer: xnnpack}\n")
    path = write_config(tmp_path, "    methods.decode.quantize: [null]", config)
    write_choice(space_of(path), trial_of((0,)))
    assert "    quantize: null\n" in path.read_text()


def test_an_anchor_that_others_use_is_left_alone(tmp_path):
    config = CONFIG.replace("decode:\n", "decode: &all\n").replace("encode: {}\n  ", "")
    config = config.replace("tune:\n", "  encode: *all\ntune:\n")
    path = write_config(tmp_path, "    methods.decode.partitioners: [[]]", config)
    before = path.read_text()
    with pytest.raises(PipelineError, match="can't be edited without changing other values"):
        write_choice(space_of(path), trial_of((0,)))
    assert path.read_text() == before
