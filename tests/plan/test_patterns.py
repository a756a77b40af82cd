"""Patterns of `emit` that match nothing give a line in the plan, or when a package is linked."""

import pytest

from pipeline.plan.patterns import check_patterns
from pipeline.program.module_paths import Outline
from tests.plan.test_checks import DOCUMENT
from tests.support.configs import parse_config

OUTLINE = {
    "calls": {"encoder": [0], "encoder.act": [0], "decoder.0": [0]},
    "same": [],
    "modules": ["encoder", "encoder.act", "decoder", "decoder.0"],
    "tensors": {"encoder.weight": "parameter", "decoder.0.bias": "parameter", "kv.pos": "buffer"},
}
FITS_NOTHING = "matches no constant of the package"
KNOWN = "known: decoder, decoder.0, encoder, encoder.act"


def found(emit, known=True, **method):
    methods = {"run": {"partitioners": ["xnnpack"], **method}}
    config = parse_config("p", {"model": "m", "methods": methods, "emit": emit}, "f.yaml")
    outline = Outline(**OUTLINE) if known else None
    problems = check_patterns(config, DOCUMENT, {"run": None}, lambda source: outline)
    return [str(each).removeprefix("f.yaml: emit.") for each in problems]


@pytest.mark.parametrize(
    "emit",
    [
        {"external_weights": True},
        {"external_weights": ["decoder", "encoder.weight", "*.bias", "enc*"]},
        {"external_files": {"a": ["decoder.*"], "b": ["*"]}},
        {"initialized_buffers": ["kv", "v_pos", "b_kv"]},
    ],
)
def test_patterns_that_fit_something(emit):
    assert found(emit) == []


@pytest.mark.parametrize(
    ("emit", "line"),
    [
        (
            {"external_weights": ["encoder", "decodr.*"]},
            f"external_weights.weights[1]: 'decodr.*' {FITS_NOTHING}; did you mean 'decoder'? "
            + KNOWN,
        ),
        (
            {"external_weights": {"head": ["encoder.act"]}},
            f"external_weights.head[0]: 'encoder.act' {FITS_NOTHING}; it is a module without "
            "constants",
        ),
        (
            {"external_files": {"a": ["encoder"]}},
            f"external_files.a[0]: 'encoder' {FITS_NOTHING}; did you mean 'encoder.*'?",
        ),
        (
            {"initialized_buffers": ["kv.pos"]},
            "initialized_buffers[0]: 'kv.pos' is not part of a buffer's name, where '_' replaces "
            "'.'; did you mean 'kv_pos'? known: kv_pos",
        ),
    ],
)
def test_patterns_that_fit_nothing_are_told_with_what_there_is(emit, line):
    assert found(emit) == [line]
    assert found(emit, known=False) == []


def test_where_names_are_made_later_linking_tells():
    wrong = {"external_weights": ["encodr"]}
    assert len(found(wrong)) == 1
    assert found(wrong, quantize={"quantizer": "xnnpack", "dynamic": True}) == []
    assert found(wrong, edge={"passes": ["own:fuse"]}) == []
