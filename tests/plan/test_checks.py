"""Checks of a config against the methods of its model."""

import pytest

from pipeline.backends import BACKENDS, QUANTIZERS, RECIPES, quantizes_for
from pipeline.plan.checks import check_methods
from pipeline.plan.config_checks import _emission_conflicts, _foreign_quantizers
from tests.support.configs import parse_config
from tests.support.documents import DOCUMENT


def problems(methods, known, **more):
    data = {"model": "m", "methods": {name: {"partitioners": []} for name in methods}, **more}
    found = check_methods(parse_config("p", data, "f.yaml"), DOCUMENT, known)
    return [str(problem) for problem in found]


def test_methods_are_those_of_the_model():
    assert problems(["encode"], ["encode"]) == []
    assert problems(["encode", "embed"], ["encode", "embedd"]) == [
        "f.yaml: methods.embed: is not a method of the model; did you mean 'embedd'? "
        "known: encode, embedd",
        "f.yaml: methods: lacks 'embedd', a method of the model; add it "
        "(`partitioners: []` for portable operators only), or leave it out with `embedd: omit`",
    ]
    omitted = {"encode": {"partitioners": []}, "embedd": "omit", "embde": "omit"}
    data = {"model": "m", "methods": omitted}
    found = check_methods(parse_config("p", data, "f.yaml"), DOCUMENT, ["encode", "embedd"])
    assert [str(problem) for problem in found] == [
        "f.yaml: methods.embde: is not a method of the model; did you mean 'embedd'? "
        "known: encode, embedd",
    ]


def test_a_constant_method_may_not_be_a_method_of_the_model():
    lines = problems(["encode"], ["encode", "classify"], constant_methods={"classify": 1})
    assert lines[0] == "f.yaml: constant_methods.classify: is also a method of the model; rename it"


def test_settings_of_emission_that_do_not_go_together():
    def found(emit, **method):
        data = {"model": "m", "methods": {"f": {"partitioners": [], "emit": method}}, "emit": emit}
        return [
            str(each) for each in _emission_conflicts(parse_config("p", data, "f.yaml"), DOCUMENT)
        ]

    unplanned = {"alloc_mutable_buffers": False}
    assert found({}) == []
    assert found({"memory_planning": unplanned, "emit_mutable_buffer_names": True}) == []
    (line,) = found({}, memory_planning=unplanned)
    assert line == (
        "f.yaml: methods.f.emit.memory_planning.alloc_mutable_buffers: leaves buffers that a "
        "runtime can find only by name; set `emit: {emit_mutable_buffer_names: true}`"
    )
    shared = {"memory_planning": {"share_mutable_buffers": True}}
    (line,) = found(shared, memory_planning={"algorithm": "naive"})
    assert "methods.f.emit.memory_planning: applies to one method" in line
    skips = {"skip_h2d_for_method_inputs": True}
    (line,) = found({"enable_non_cpu_memory_planning": False}, propagate_device=skips)
    assert "methods.f.emit.propagate_device: skips copies" in line


IOS17 = "`coreml: {minimum_deployment_target: ios17}`"
DYNAMIC = {"quantizer": "xnnpack", "dynamic": True}


def on(target):
    return {"coreml": {"minimum_deployment_target": target}}


@pytest.mark.parametrize(
    ("quantizer", "partitioners", "known"),
    [
        ("xnnpack", ["coreml"], f"set `quantizer: coreml`, or set {IOS17}"),
        ("vulkan", ["coreml"], f"set `quantizer: coreml`, or set {IOS17}"),
        ("xnnpack", [on("ios16")], f"set `quantizer: coreml`, or set {IOS17}"),
        ("xnnpack", [on("macos13")], f"set `quantizer: coreml`, or set {IOS17}"),
        (
            "xnnpack",
            ["coreml", "openvino"],
            f"set `quantizer: coreml` or `quantizer: openvino`, or set {IOS17}",
        ),
        ("xnnpack", [on("ios17")], None),
        ("vulkan", [on("ios18")], None),
        ("xnnpack", [on("macos14")], None),
        ("xnnpack", ["openvino", on("watchos10")], None),
        (DYNAMIC, [on("ios17")], "set `quantizer: coreml`, or add xnnpack to the partitioners"),
        (
            {**DYNAMIC, "dynamic": False, "modules": {"fc": {"dynamic": True}}},
            [on("ios17")],
            "set `quantizer: coreml`, or add xnnpack to the partitioners",
        ),
        (
            {"quantizer": "openvino"},
            [on("ios17")],
            "set `quantizer: coreml`, or add openvino to the partitioners",
        ),
        ("coreml", ["xnnpack"], "set `quantizer: xnnpack`, or add coreml to the partitioners"),
        ("vulkan", ["xnnpack"], "set `quantizer: xnnpack`, or add vulkan to the partitioners"),
        (
            "coreml",
            ["vulkan", "xnnpack"],
            "set `quantizer: vulkan` or `quantizer: xnnpack`, or add coreml to the partitioners",
        ),
        ("xnnpack", ["mps"], "leave it out, or add xnnpack to the partitioners"),
        ("xnnpack", ["xnnpack"], None),
        ("xnnpack", ["coreml", "xnnpack"], None),
        ("xnnpack", ["vulkan"], None),  # as upstream's tests do
        ("vulkan", ["webgpu"], None),  # the same backend_id
        ("xnnpack", [], None),  # portable operators compute with it
        ({"quantizer": "torchao", "scheme": "int4_weight_only"}, ["coreml"], None),
    ],
)
def test_a_quantizer_goes_with_a_partitioner(quantizer, partitioners, known):
    quantize = {"quantizer": quantizer} if isinstance(quantizer, str) else quantizer
    data = {"model": "m", "methods": {"f": {"partitioners": partitioners, "quantize": quantize}}}
    found = list(_foreign_quantizers(parse_config("p", data, "f.yaml"), DOCUMENT))
    if known is None:
        assert found == []
        return
    (problem,) = found
    names = ", ".join(item if isinstance(item, str) else "coreml" for item in partitioners)
    assert str(problem) == (
        f"f.yaml: methods.f.quantize: quantizes for {quantize['quantizer']}, but the "
        f"partitioners are {names}; {known}"
    )


def test_recipes_and_arms_backends_go_with_their_quantizers():
    for name, recipe in RECIPES.items():
        if "quantize" in recipe:
            data = {"model": "m", "methods": {"f": dict(recipe)}}
            found = _foreign_quantizers(parse_config("p", data, "f.yaml"), DOCUMENT)
            assert list(found) == [], name
    assert all(quantizes_for(name, BACKENDS[name]) for name in QUANTIZERS.keys() & BACKENDS.keys())
    assert quantizes_for("tosa", BACKENDS["vgf"]) and quantizes_for("vgf", BACKENDS["ethos-u"])
    assert not quantizes_for("tosa", BACKENDS["cortex_m"])
