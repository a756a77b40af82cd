"""Mixed precision: all quantizers with options per module and operator treat them the same way."""

import json
from functools import cache
from importlib.util import find_spec

import jsonschema
import pytest
import torch
import yaml
from torch import nn
from torch.export import export

from pipeline.backends import BACKENDS, QUANTIZERS, make_partitioners
from pipeline.backends.quantize_options import MixedQuantize
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.features.quantization.quantize import quantize
from pipeline.features.schemas.config_schema import json_schema
from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import enclosing_modules
from pipeline.program.operators import base_name
from pipeline.store.errors import ConfigErrors, PipelineError
from tests.support.configs import parse_config

MIXED = sorted(name for name, each in QUANTIZERS.items() if issubclass(each.options, MixedQuantize))
# Options that a quantizer requires.
BASE = {
    "ethos-u": {"target": "ethos-u85-256"},
    "tosa": {"tosa_spec": "TOSA-1.0+INT+FP+int16"},
}
MODULES = {
    "ethos-u": ("tosa_serializer", "ethosu"),
    "tosa": ("tosa_serializer",),
    "vgf": ("tosa_serializer", "model_converter"),
    "openvino": ("openvino", "nncf"),
}


def needs(quantizer, *values, release=()):
    """Return a parameter that is skipped if its extra isn't installed.

    Long cases are marked slow; quantizers that share code with another one run before releases
    only.
    """
    there = all(find_spec(module) for module in MODULES.get(quantizer, ()))
    reason = f"needs pip install 'pte-pipeline[{quantizer}]'"
    marks = [pytest.mark.skipif(not there, reason=reason)]
    if quantizer not in ("vulkan", "xnnpack"):
        marks.append(pytest.mark.slow)
    if quantizer in release:
        marks.append(pytest.mark.release)
    return pytest.param(quantizer, *values, marks=marks)


class Net(nn.Module):
    """Two convolutions, the second in a submodule, and two linear layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.up, self.down = nn.Linear(128, 32), nn.Linear(32, 16)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x += self.block(x)
        x = nn.functional.max_pool2d(x, 2, 2)
        return self.down(torch.relu(self.up(x.flatten(1))))


def inputs_of(count):
    generator = torch.Generator().manual_seed(7)
    return [InputSet((torch.randn(1, 3, 8, 8, generator=generator),)) for _ in range(count)]


@pytest.fixture(scope="module")
def net():
    return export(Net().eval().requires_grad_(False), inputs_of(1)[0].args, strict=True)


def method_of(quantizer, **overrides):
    options = BASE.get(quantizer, {})
    device = {"minimum_deployment_target": "ios18"} if quantizer == "coreml" else options
    method = {
        "partitioners": [{quantizer: device} if device else quantizer],
        "quantize": {"quantizer": quantizer, **options, **overrides},
    }
    data = {"model": "m", "methods": {"f": method}}
    return parse_config("p", data, "p.yaml").methods["f"]


def quantized(program, quantizer, **overrides):
    spec = method_of(quantizer, **overrides).quantize
    return quantize(program, spec, inputs_of(2) if spec.calibrates else [])


def source(node):
    """Return how a value that an operator reads is quantized, or "" if it isn't.

    It names the operator that produces the value, its limits and its type.
    """
    while base_name(node) in ("to", "_assert_tensor_metadata", "mul") and "weights" in str(
        enclosing_modules(node)
    ):
        node = node.args[0]  # NNCF stores weights this way, and casts them
    if node.op != "call_function":
        kept = node.meta.get("val")
        return str(kept.dtype) if kept is not None and not kept.dtype.is_floating_point else ""
    name = base_name(node)
    return f"{name} {node.args[-3:]}" if name.startswith("dequantize") else ""


def kinds(program):
    """Return how each input of an operator is quantized, by operator and module.

    It also says whether Arm's backends are told so.
    """
    found = {}
    for node in program.graph.nodes:
        name = base_name(node)
        module = (enclosing_modules(node) or [""])[-1]
        ours = "quantize" in name or "qparams" in name or "weights_decompressor" in module
        if not name or ours:
            continue
        told = node.meta.get("custom", {}).get("_arm_annotation_info", {}).get("quantized", True)
        same = sum(key[:2] == (name, module) for key in found)
        found[name, module, same] = ([source(each) for each in node.all_input_nodes], told)
    return found


@cache
def _kinds_of_all(program, quantizer):
    return kinds(quantized(program, quantizer))


def changed(program, quantizer, **overrides):
    """Return the operators, with their modules, that overrides affect."""
    before = _kinds_of_all(program, quantizer)
    after = kinds(quantized(program, quantizer, **overrides))
    assert before.keys() == after.keys()
    return {key[:2] for key in before if before[key] != after[key]}, after


CONV, UP, DOWN, ADD = ("conv2d", "block.0"), ("linear", "up"), ("linear", "down"), ("add", "")
POOL, FLATTEN = ("max_pool2d", ""), ("flatten", "")
STATIC = ("coreml", "openvino", "tosa", "xnnpack")
# Overrides of each quantizer, and what they change.
CASES = [
    *(needs(name, {"modules": {"down": "none"}}, {DOWN}) for name in MIXED if name in STATIC),
    needs("vulkan", {"modules": {"down": "none"}}, {DOWN}),
    # The block's rectifier is fused into the convolution, so it changes too.
    needs("xnnpack", {"modules": {"block": "none"}}, {CONV}),
    needs("tosa", {"modules": {"block": "none"}}, {CONV, ("relu", "block.1")}),
    needs("coreml", {"modules": {"block": "none"}}, {CONV}),
    needs("vulkan", {"modules": {"up": {"dynamic": True}}}, {UP}),
    needs("vulkan", {"operators": {"linear": {"weight_bits": 4}}}, {UP, DOWN}),
    needs("tosa", {"modules": {"down": {"activations": "int16"}}}, {DOWN}),
    needs("tosa", {"operators": {"linear": {"per_channel": False}}}, {UP, DOWN}),
    needs("coreml", {"operators": {"linear": {"weight_dtype": "quint8"}}}, {UP, DOWN}),
    # A module option comes before an operator option.
    needs(
        "coreml",
        {"operators": {"linear": "none"}, "modules": {"up": {"weight_per_channel": True}}},
        {DOWN},
    ),
    needs(
        "tosa",
        {"operators": {"linear": "none"}, "modules": {"up": {"per_channel": True}}},
        {DOWN},
    ),
    needs(
        "vulkan",
        {"operators": {"linear": {"dynamic": True}}, "modules": {"up": {"dynamic": False}}},
        {DOWN},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("quantizer", "overrides", "expected"), CASES)
def test_an_override_changes_what_it_names_and_nothing_else(net, quantizer, overrides, expected):
    assert changed(net, quantizer, **overrides)[0] == expected


@pytest.mark.parametrize("quantizer", [needs(name) for name in MIXED])
def test_none_leaves_a_module_as_it_was(net, quantizer):
    """Its weight stays float, and Arm's quantizer doesn't list the module among those it saw."""
    found = kinds(quantized(net, quantizer, modules={"up": "none"}))
    (up,) = (each for key, each in found.items() if key[:2] == UP)
    (down,) = (each for key, each in found.items() if key[:2] == DOWN)
    assert up[0][1:] == ["", ""]
    assert down[0][1]
    assert up[1] == (quantizer not in ("ethos-u", "tosa", "vgf"))


@pytest.mark.parametrize("quantizer", [needs(name) for name in ("coreml", "openvino", "tosa")])
def test_an_operator_that_works_in_place_is_the_same_operator(net, quantizer):
    assert "aten.add_.Tensor" in {str(node.target) for node in net.graph.nodes}
    different, after = changed(net, quantizer, operators={"add": "none"})
    if quantizer == "tosa":  # otherwise its surroundings are quantized, which looks the same
        assert different == {ADD}
        assert not after[*ADD, 0][1]
    else:  # the pool reads a quantized value and passes it on
        assert different <= {ADD, POOL, FLATTEN}


@pytest.mark.slow
def test_what_reads_a_value_that_is_left_out_reads_it_as_it_is(net):
    assert changed(net, "coreml", operators={"max_pool2d": "none"})[0] == {FLATTEN}


@pytest.mark.slow
def test_activations_are_quantized_behind_weights_alone(net):
    """Core ML's quantizer treats an annotated input as a quantized one."""
    after = changed(net, "coreml", modules={"first": {"activation_dtype": "float32"}})[1]
    assert after["conv2d", "block.0", 0][0][0].endswith("torch.uint8)")
    assert after["conv2d", "first", 0][0][0] == ""


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        return self.out(torch.softmax(x, -1)) * 2


@needs("tosa").marks[0]
@pytest.mark.slow
def test_what_arm_makes_of_an_operator_goes_with_it():
    """A softmax is decomposed into other operators before annotation."""
    program = export(Attention().eval().requires_grad_(False), (torch.randn(2, 8),))
    spec = method_of("tosa", operators={"softmax": {"activations": "int16"}}).quantize
    found = kinds(quantize(program, spec, [InputSet((torch.randn(2, 8),))]))
    assert "softmax" not in {name for name, _, _ in found}
    for (name, module, _), (inputs, _) in found.items():
        wanted = "torch.int8" if module == "out" or name == "amax" else "torch.int16"
        if name in ("exp", "sum", "reciprocal"):
            assert all(wanted in each for each in inputs), (name, inputs)
    assert "exp" in {name for name, _, _ in found}
    spec = method_of("tosa", operators={"exp": "none"}).quantize
    with pytest.raises(PipelineError, match="no operator 'exp' in the program"):
        quantize(program, spec, [InputSet((torch.randn(2, 8),))])


IO = {"int16": "torch.int16", "uint8": "torch.uint8"}


@pytest.mark.parametrize("io", [pytest.param(io, marks=needs("tosa").marks) for io in IO], ids=str)
def test_arms_borders_have_a_type_of_their_own(net, io):
    program = quantized(net, "tosa", io=io)
    (placeholder,) = (n for n in program.graph.nodes if n.name == "x")
    (first,) = placeholder.users
    (output,) = program.graph.output_node().all_input_nodes
    assert str(first.args[-1]) == str(output.args[-1]) == IO[io]
    assert all("torch.int8" in inputs[1] for inputs, _ in kinds(program).values() if inputs[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "quantizer", [needs(name, release=("tosa", "vgf", "vulkan")) for name in MIXED]
)
def test_a_mixed_method_is_lowered_and_to_the_same_bytes(net, quantizer):
    method = method_of(quantizer, modules={"up": "none"})

    def package():
        program = quantize(net, method.quantize, inputs_of(2) if method.quantize.calibrates else [])
        with BACKENDS[quantizer].preprocessing.around():
            return emit(lower({"f": program}, {"f": make_partitioners(method.partitioners)})).buffer

    assert package() == package()


@pytest.mark.parametrize("quantizer", MIXED)
def test_overrides_are_part_of_the_key(quantizer):
    plain, mixed = method_of(quantizer), method_of(quantizer, modules={"up": "none"})
    assert plain.quantize.resolved() != mixed.quantize.resolved()
    assert mixed.quantize.resolved()["modules"] == {"up": "none"}
    one = method_of(quantizer, modules={"up": "none", "down": "none"})
    other = method_of(quantizer, modules={"down": "none", "up": "none"})
    assert json.dumps(one.quantize.resolved()) == json.dumps(other.quantize.resolved())


@pytest.mark.parametrize("quantizer", MIXED)
def test_every_mistake_in_overrides_is_told_at_once(quantizer):
    wrong = {
        "modules": {"not a module": "none", "up": {"bits": 3}, "down": "nothing"},
        "operators": {"liner": "none", "linear": 8},
    }
    with pytest.raises(ConfigErrors) as errors:
        method_of(quantizer, **wrong)
    said = str(errors.value).splitlines()
    path = "p.yaml: methods.f.quantize."
    only_none = not QUANTIZERS[quantizer].options.scheme.model_fields
    for expected in (
        f"{path}modules.'not a module': is 'not a module', must be a module's qualified name",
        f"{path}modules.up: is a mapping, must be none"
        if only_none
        else f"{path}modules.up: unknown key 'bits'",
        f"{path}modules.down: is 'nothing', must be ",
        f"{path}operators.linear: is 8, must be ",
        f"{path}operators.liner: is 'liner', must be one of the known values; did you mean",
    ):
        assert any(line.startswith(expected) for line in said), (expected, said)


@pytest.mark.parametrize("quantizer", [needs(name) for name in MIXED])
def test_what_the_program_lacks_is_told(net, quantizer):
    with pytest.raises(PipelineError) as error:
        quantized(net, quantizer, modules={"dwn": "none"})
    assert str(error.value).startswith("no module 'dwn' in the program; did you mean 'down'?")


@pytest.mark.parametrize("quantizer", MIXED)
def test_the_schema_knows_overrides(quantizer):
    validator = jsonschema.Draft202012Validator(json_schema())

    def valid(**overrides):
        options = {"quantizer": quantizer, **BASE.get(quantizer, {}), **overrides}
        data = {"model": "m", "methods": {"f": {"partitioners": [], "quantize": options}}}
        return validator.is_valid(yaml.safe_load(yaml.safe_dump(data)))

    assert valid(modules={"up": "none"}, operators={"linear": "none"})
    assert not valid(modules={"a b": "none"})
    assert not valid(modules={"up": "nothing"})
    assert not valid(operators={"liner": "none"})
    assert not valid(operators={"linear": {"bits": 3}})


ARM_MISTAKES = {
    "operators: is a mapping, must set none for cat": {
        "operators": {"cat": {"per_channel": False}}
    },
    "modules: is a mapping, must not set int16 for up": {
        "tosa_spec": "TOSA-1.0+INT",
        "modules": {"up": {"activations": "int16"}},
    },
    "modules: is a mapping, must not set act_qmin for up": {
        "activations": "int16",
        "modules": {"up": {"act_qmin": -100}},
    },
    "modules.up.act_qmin: is -100, must be -128 with int16": {
        "modules": {"up": {"activations": "int16", "act_qmin": -100}}
    },
    "io: is 'int16', must be int8": {"tosa_spec": "TOSA-1.0+INT", "io": "int16"},
}


@pytest.mark.parametrize(("says", "options"), ARM_MISTAKES.items(), ids=ARM_MISTAKES)
def test_what_arm_can_not_mix_is_refused(says, options):
    with pytest.raises(ConfigErrors) as errors:
        method_of("tosa", **options)
    assert f"methods.f.quantize.{says}" in str(errors.value)


def test_what_core_ml_and_openvino_can_not_mix_is_refused():
    with pytest.raises(
        ConfigErrors, match=("must set none for flatten, which is otherwise quantized like")
    ):
        method_of("coreml", operators={"flatten": {"weight_dtype": "quint8"}})
    with pytest.raises(ConfigErrors, match="can't be combined with smooth_quant"):
        method_of("openvino", smooth_quant=True, modules={"up": "none"})


@pytest.mark.parametrize("name", [needs("tosa")])
def test_arms_operators_are_those_that_its_quantizer_knows(name):
    from executorch.backends.arm.quantizer.arm_quantizer_utils import SharedQspecQuantizer
    from executorch.backends.arm.quantizer.quantizer_support import TOSA_QUANTIZER_SUPPORT_DICT

    from pipeline.backends.options import NAMES

    def named(target):
        parts = target.__name__.split(".")
        return (parts[-2] if len(parts) > 1 else parts[0]).removesuffix("_")

    own = {named(pattern[0]) for pattern in TOSA_QUANTIZER_SUPPORT_DICT if len(pattern) == 1}
    followers = {named(target) for target in SharedQspecQuantizer.SHARED_QSPEC_OPS_DEFAULT}
    assert set(NAMES["arm_operators"]) == own
    assert set(NAMES["arm_followers"]) == followers - own - {"cond", "getitem", "while_loop"}
