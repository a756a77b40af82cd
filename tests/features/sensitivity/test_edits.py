"""Where overrides go in a config: to one method of one package only, or nowhere."""

import pytest

from pipeline.features.sensitivity.edits import edit_configs, edit_methods
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import open_workspace

DEFAULTS = """\
model: pair
defaults: {partitioners: [xnnpack], quantize: {quantizer: xnnpack}}   # for both
methods: {encode: {}, decode: {}}
"""
MATRIX = """\
model: pair
defaults: {partitioners: [xnnpack]}
methods: {encode: {}, decode: {}}
matrix:
  precision:
    fp32: {}
    int8:
      defaults: {quantize: {quantizer: xnnpack}}
"""
RECIPE = "model: pair\nmethods: {encode: {recipe: xnnpack_pt2e_int8_static_per_channel}}\n"
HEAD = {"encode": {"modules": {"head": "none"}}}


def edited(tmp_path, text, package):
    (tmp_path / "partition_configs").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "partition_configs" / "pair.yaml").write_text(text)
    return edit_configs(Plan(open_workspace(tmp_path)), package, HEAD)


@pytest.mark.parametrize(
    ("text", "package", "old", "new"),
    [
        (DEFAULTS, "pair", "encode: {}", "encode: {quantize: {modules: {head: none}}}"),
        (
            MATRIX,
            "pair-int8",
            "      defaults: {quantize: {quantizer: xnnpack}}\n",
            "      defaults: {quantize: {quantizer: xnnpack}}\n"
            "      methods: {encode: {quantize: {modules: {head: none}}}}\n",
        ),
    ],
)
def test_defaults_of_several_methods_stay(tmp_path, text, package, old, new):
    assert edited(tmp_path, text, package) == {"pair.yaml": text.replace(old, new)}
    assert (tmp_path / "partition_configs" / "pair.yaml").read_text() == text
    assert list((tmp_path / "build").glob(".sensitivity-*")) == []


def test_a_recipe_takes_no_overrides(tmp_path):
    with pytest.raises(PipelineError, match="has no place for `modules` of this method alone"):
        edited(tmp_path, RECIPE, "pair")


VULKAN_FIRST = "[{vulkan: {modules: [head]}}, xnnpack]"
BLOCK = """\
model: pair
methods:
  encode:
    partitioners:
      - xnnpack
    allow_none: true   # as it is
  decode: {partitioners: []}
"""


def test_settings_of_a_method_replace_those_that_are_there(tmp_path):
    (tmp_path / "partition_configs").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "partition_configs" / "pair.yaml").write_text(BLOCK)
    partitioners = [{"vulkan": {"modules": ["head"]}}, "xnnpack"]
    settings = {"encode": {"partitioners": partitioners}, "decode": {"modules": ["!head"]}}
    (text,) = edit_methods(Plan(open_workspace(tmp_path)), "pair", settings).values()
    old, new = "partitioners:\n      - xnnpack\n", f"partitioners: {VULKAN_FIRST}\n"
    assert text == BLOCK.replace(old, new).replace("[]}", "[], modules: ['!head']}")
