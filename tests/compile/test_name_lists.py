"""Names in partitioner options are looked up in the partitioned program."""

import pytest
import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import export

from pipeline.backends import BACKENDS, PartitionerSpec
from pipeline.features.reasons.name_lists import look_up_names
from pipeline.features.summary.unwritten import find_unknown_names


@pytest.fixture(scope="module")
def program():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    return to_edge(export(module, (torch.ones(1, 4),))).exported_program()


def looked_up(program, backend, **options):
    spec = PartitionerSpec(name=backend, options=BACKENDS[backend].options(**options))
    return {listed["name"]: listed for listed in look_up_names(spec, program)}


@pytest.mark.parametrize(
    ("backend", "option", "right", "wrong", "meant"),
    [
        ("vulkan", "nn_module_blocklist", "linear.Linear", "Linaer", "Linear"),
        ("webgpu", "nn_module_allowlist", "ReLU", "Relu6", "ReLU"),
        ("vulkan", "operator_allowlist", "aten.relu.default", "aten.relu6.default", "aten.relu"),
        ("openvino", "op_types_to_skip", "aten.relu.default", "relu", "aten.relu.default"),
        ("openvino", "op_names_to_skip", "aten_relu_default", "aten_relu_default_1", "aten_relu"),
        ("coreml", "skip_ops_for_coreml_delegation", "aten.relu.default", "aten.add.Tensor", ""),
    ],
)
def test_names_are_looked_up_as_the_partitioner_compares_them(
    program, backend, option, right, wrong, meant
):
    found = looked_up(program, backend, **{option: [right, wrong]})
    assert found[right]["found"] and not found[right]["hint"]
    assert not found[wrong]["found"] and meant in found[wrong]["hint"]
    assert found[wrong]["option"] == f"{backend}.{option}"


def test_options_without_names_are_not_looked_up(program):
    assert looked_up(program, "vulkan", force_fp16=True) == {}
    assert looked_up(program, "xnnpack") == {}


def test_a_name_that_one_method_has_is_not_unknown(program):
    lists = {"operator_blocklist": ["aten.relu.default", "aten.add.Tensor"]}
    one = [*looked_up(program, "vulkan", **lists).values()]
    other = [{**each, "found": each["name"] == "aten.add.Tensor"} for each in one]
    (sentence,) = find_unknown_names({"a": {"listed": one}, "b": {}})
    assert sentence.startswith(
        "vulkan.operator_blocklist names 'aten.add.Tensor', which the package does not have; "
    )
    assert not [*find_unknown_names({"a": {"listed": one}, "b": {"listed": other}})]
