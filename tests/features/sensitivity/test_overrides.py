"""The config settings that keep modules in float."""

from pipeline.backends import QUANTIZERS
from pipeline.features.sensitivity.overrides import keep_in_float


def spec_of(**options):
    return QUANTIZERS["xnnpack"].options(quantizer="xnnpack", **options)


def test_modules_inside_of_a_kept_one_stay_quantized():
    units = ["block", "block.dense", "block.dense.inner", "head", "operator add"]
    spec = spec_of(per_channel=True)
    assert keep_in_float(["block", "operator add"], units, spec) == {
        "modules": {"block": "none", "block.dense": {"per_channel": True}},
        "operators": {"add": "none"},
    }
    assert keep_in_float(["block", "block.dense"], units, spec) == {
        "modules": {
            "block": "none",
            "block.dense": "none",
            "block.dense.inner": {"per_channel": True},
        }
    }


def test_options_of_a_module_around_are_repeated():
    spec = spec_of(per_channel=True, modules={"encoder": {"dynamic": True}})
    overrides = keep_in_float(["encoder.block"], ["encoder.block", "encoder.block.dense"], spec)
    assert overrides["modules"]["encoder.block.dense"] == {"dynamic": True}


def test_overrides_that_are_there_stay():
    spec = spec_of(modules={"block.dense": {"dynamic": True}})
    units = ["block", "block.dense"]
    assert keep_in_float(["block"], units, spec) == {"modules": {"block": "none"}}
    assert keep_in_float([], units, spec) == {}
