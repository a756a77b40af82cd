"""Vulkan and WebGPU as catalogue entries, lowered through doit; neither runs here."""

import ast
from pathlib import Path
from typing import get_args

import executorch
import pytest
from executorch.backends.vulkan.partitioner import vulkan_partitioner
from executorch.backends.vulkan.patterns import fusable_patterns
from executorch.backends.vulkan.quantizer import vulkan_quantizer
from executorch.backends.vulkan.serialization.vulkan_graph_schema import (
    VkMemoryLayout,
    VkStorageType,
)
from executorch.backends.vulkan.utils import DEFAULT_BUFFER_LIMIT
from executorch.exir.dialects._ops import ops
from pydantic import ValidationError

from pipeline.backends import PartitionerSpec, make_partitioners, make_quantizer
from pipeline.backends.options import NAMES
from pipeline.features.delegate_libraries.libraries import VARIABLE, find_library
from pipeline.features.vulkan.entries import (
    VulkanOptions,
    VulkanQuantize,
    VulkanStorage,
    WebGpuOptions,
)
from pipeline.program.runtime_bindings import import_bindings
from pipeline.store.errors import PipelineError
from tests.support.bench import REPOSITORY
from tests.support.lowerable import (
    bench_for,
    both,
    check_delegated,
    check_fresh_checkout_hits,
    check_not_run,
    check_ran,
    check_same_bytes,
    manifest_of,
)
from tests.support.refused import left_by
from tests.support.resident import run_python

pytestmark = pytest.mark.slow


def classify_quantized(**options):
    """Quantize the second method only: it has a linear layer, all that the quantizer supports."""
    plain = {"partitioners": ["vulkan"]}
    quantized = {**plain, "quantize": {"quantizer": "vulkan", **options}}
    return {"methods": {"features": plain, "classify": quantized}}


VULKAN = {
    "fp32": both(partitioners=["vulkan"]),
    "fp16": both(partitioners=[{"vulkan": {"force_fp16": True}}]),
    "weights8": classify_quantized(),
    "dynamic4": classify_quantized(dynamic=True, weight_bits=4),
    "mixed": classify_quantized(modules={"head": {"dynamic": True, "weight_bits": 4}}),
}
WEBGPU = {
    "webgpu": both(partitioners=[{"webgpu": {"operators": ["aten.relu.default"]}}]),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(tmp_path_factory.mktemp("gpu") / "workspace", VULKAN | WEBGPU)
    assert bench.doit(timeout=900, **{VARIABLE: ""}) == 0, bench.output
    return bench


@pytest.mark.parametrize("package", VULKAN)
def test_everything_is_delegated(bench, package):
    check_delegated(bench, package, "VulkanBackend", 0.9)


def test_webgpu_delegates_what_it_is_given(bench):
    check_delegated(bench, "webgpu", "VulkanBackend", 0.25)
    for facts in manifest_of(bench, "webgpu")["methods"].values():
        assert facts["delegation"]["partitions"] == {"VulkanBackend": 2}


@pytest.mark.parametrize("package", VULKAN | WEBGPU)
def test_it_is_not_run_here(bench, package):
    check_not_run(bench, package, "ExecuTorch's wheel has no Vulkan delegate")


@pytest.mark.skipif(not find_library("VulkanBackend"), reason="no library of the delegate")
def test_a_library_of_the_delegate_runs_it(bench, tmp_path):
    """docs/guides/running-delegates.md says how to build one, and how to run it without a GPU."""
    configs = {name: (VULKAN | WEBGPU)[name] for name in ("fp32", "webgpu")}
    other = bench_for(tmp_path / "workspace", configs)
    assert other.doit() == 0, other.output
    for package in configs:
        check_ran(other, package)


def test_the_runtime_in_the_wheel_has_no_such_delegate():
    assert "VulkanBackend" not in import_bindings()._get_registered_backend_names()


def test_bytes_are_those_of_the_joint_call_and_of_another_build(bench):
    check_same_bytes(bench, ["weights8"], "fp16", "mixed", "webgpu")


def test_a_fresh_checkout_compiles_nothing(bench, tmp_path):
    check_fresh_checkout_hits(bench, tmp_path / "other", "fp16", "webgpu")


def partitioner(**options):
    (made,) = make_partitioners([PartitionerSpec(name="vulkan", options=VulkanOptions(**options))])
    return made


def test_enum_members_are_the_installed_ones():
    assert list(get_args(VulkanStorage)) == [each.name.lower() for each in VkStorageType]
    assert list(NAMES["vulkan_layouts"]) == [each.name.lower() for each in VkMemoryLayout]


def test_defaults_are_the_constructors():
    ours, theirs = partitioner(), vulkan_partitioner.VulkanPartitioner()
    assert vars(ours).keys() == vars(theirs).keys()
    assert ours.delegation_spec.compile_specs == theirs.delegation_spec.compile_specs == []
    for name in vars(theirs).keys() - {"delegation_spec"}:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert VulkanOptions().buffer_limit == DEFAULT_BUFFER_LIMIT


@pytest.mark.parametrize(
    ("option", "value", "upstream"),
    [
        ("force_fp16", True, True),
        ("skip_bool_tensors", True, True),
        ("downcast_64_bit", False, False),
        ("texture_limits", [4096, 2048, 64], (4096, 2048, 64)),
        ("small_texture_limits", True, True),
        ("buffer_limit", 1000, 1000),
        ("require_dynamic_shapes", True, True),
        ("storage_type_override", "buffer", VkStorageType.BUFFER),
        ("memory_layout_override", "packed_int8_4w4c", VkMemoryLayout.PACKED_INT8_4W4C),
        ("skip_tag_memory_metadata", True, True),
        ("skip_memory_planning", True, True),
        ("warmup_execute_after_compile", True, True),
    ],
)
def test_compile_options_take_effect(option, value, upstream):
    made = partitioner(**{option: value})
    assert made.options == {option: upstream}
    specs = {spec.key: spec.value for spec in made.delegation_spec.compile_specs}
    if option == "texture_limits":
        sizes = zip("xyz", upstream, strict=True)
        assert specs == {f"texture_limits_{a}": n.to_bytes(4, "little") for a, n in sizes}
    elif option != "buffer_limit":  # a number isn't a spec: only the partitioner has it
        assert list(specs) == [option]


def test_operators_are_found_in_every_form():
    made = partitioner(
        operator_blocklist=["aten.add.Tensor"], operator_allowlist=["aten.mul.Tensor"]
    )
    add = ops.edge.aten.add.Tensor
    assert made.operator_blocklist == {add, add._op, "aten::add.Tensor"}
    assert ops.edge.aten.mul.Tensor in made.operator_allowlist


def test_unknown_operators_are_told_with_the_nearest():
    with pytest.raises(PipelineError, match=r"^operator_blocklist: no operator aten.ad.Tensor is"):
        partitioner(operator_blocklist=["aten.ad.Tensor"])
    with pytest.raises(PipelineError, match=r"did you mean 'aten.add.Tensor'\? known: aten\._"):
        partitioner(operator_allowlist=["aten.mul.Tensor", "aten.ad.Tensor"])


def test_modules_are_passed_on():
    made = partitioner(nn_module_allowlist=["Linear"], nn_module_blocklist=["Conv"])
    assert (made.nn_module_allowlist, made.nn_module_blocklist) == ({"Linear"}, {"Conv"})


@pytest.mark.parametrize(
    "options",
    [
        {"force_fp_16": True},
        {"texture_limits": [1, 2]},
        {"texture_limits": [1, 2, 0]},
        {"texture_limits": [1, 2, 3], "small_texture_limits": True},
        {"storage_type_override": "TEXTURE_3D"},
        {"operator_blocklist": []},
        {"operator_blocklist": ["add"]},
        {"operator_blocklist": ["aten.add.Tensor", "aten.add.Tensor"]},
        {"nn_module_allowlist": [""]},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValidationError):
        VulkanOptions(**options)


def test_quantizer_defaults_are_the_functions():
    theirs = vulkan_quantizer.get_symmetric_quantization_config()
    assert make_quantizer(VulkanQuantize(quantizer="vulkan")).global_config == theirs


@pytest.mark.parametrize(("bits", "limits"), [(8, (-128, 127)), (4, (-8, 7))])
def test_weight_bits_take_effect(bits, limits):
    made = make_quantizer(VulkanQuantize(quantizer="vulkan", weight_bits=bits)).global_config
    assert (made.weight.quant_min, made.weight.quant_max) == limits
    assert made.input_activation is None


def test_ranges_and_dynamic_take_effect():
    made = make_quantizer(
        VulkanQuantize(
            quantizer="vulkan",
            dynamic=True,
            weight_qmin=-7,
            weight_qmax=7,
            act_qmin=-100,
            act_qmax=99,
        )
    ).global_config
    assert (made.weight.quant_min, made.weight.quant_max) == (-7, 7)
    activation = made.input_activation
    assert (activation.quant_min, activation.quant_max, activation.is_dynamic) == (-100, 99, True)


def test_static_quantization_observes_no_inputs():
    assert not VulkanQuantize(quantizer="vulkan").calibrates


def test_webgpu_delegates_by_default_what_upstream_tests():
    """This is read from the source: the module needs ExecuTorch's test harness."""
    source = Path(executorch.__path__[0], "backends", "webgpu", "test", "tester.py").read_text()
    (listed,) = (
        [ast.unparse(element).removeprefix("exir_ops.edge.") for element in node.value.elts]
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WEBGPU_SUPPORTED_OPS"
    )
    assert NAMES["webgpu_operators"] == listed
    spec = PartitionerSpec(name="webgpu", options=WebGpuOptions())
    (made,) = make_partitioners([spec])
    assert {ops.edge.aten.add.Tensor, ops.edge.et_vk.rms_norm.default} <= made.operator_allowlist
    assert made.options == {"skip_bool_tensors": True}


def test_pattern_graphs_are_exported_once():
    partitioner()
    kept = [e.get_graphs_fn for e in fusable_patterns.values() if e.get_graphs_fn is not None]
    assert kept and all(function.cache_info().maxsize is None for function in kept)
    first = kept[0]()
    partitioner()
    assert kept[0]() is first


_PLAIN = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir import to_edge_transform_and_lower
from tests.support.lowerable import MODEL

scope = {}
exec(MODEL, scope)
edge = to_edge_transform_and_lower(scope["export_methods"](), partitioner=[VulkanPartitioner()])
Path(sys.argv[2]).write_bytes(edge.to_executorch().buffer)
"""


def test_kept_pattern_graphs_change_nothing(bench):
    """A script without any knowledge of this package writes the same file."""
    path = bench.root / "plain.pte"
    done = run_python("-c", _PLAIN, str(REPOSITORY), str(path))
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == bench.bytes_of("fp32", "fp32.pte")


def test_what_vulkan_leaves_has_its_reason():
    told = left_by("vulkan")
    assert told["aten.asinh"] == "no operator implementation"
    assert told["aten.argmax"] == "op args not supported"
    dtypes = "{torch.bool, torch.float16, torch.float32, torch.int32, torch.int64}"
    assert told["dim_order_ops._to_dim_order_copy"] == f"output dtype torch.float64 not in {dtypes}"
    assert "aten.exp" not in told and "aten.add.Tensor" not in told


def test_what_webgpu_is_not_given_is_told():
    told = left_by("webgpu", operators=("aten.exp.default",))
    assert told["aten.add.Tensor"] == "op is not in allowlist"
