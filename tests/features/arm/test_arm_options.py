"""Arm's options against the installed executorch and vela, and the bugs of theirs fixed here."""

import configparser
import inspect
import itertools
import json
import os
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from pipeline.backends import BACKENDS, make_quantizer, vulkan_driver
from pipeline.backends.options import NAMES
from pipeline.backends.workspace_files import find_misfits
from pipeline.features.arm import emulation as arm_emulation
from pipeline.features.arm.ethos_u import (
    ETHOS_U_DEFAULTS,
    MEMORIES,
    OWN_INI,
    SYSTEMS,
    EthosUOptions,
    EthosUQuantize,
)
from pipeline.features.arm.options import PASS_OPTIONS, TOSA_EXTENSIONS
from pipeline.features.arm.tosa import TosaOptions, TosaQuantize
from pipeline.features.arm.vgf import VgfOptions, VgfQuantize, converter
from pipeline.store.errors import ConfigErrors
from tests.support.configs import parse_config

PASSES = set(PASS_OPTIONS)
U55 = {"target": "ethos-u55-128"}


def of(*parts):
    """Return Arm's part of executorch, imported, or skip the test if an extra is missing."""
    for name in ("tosa", "ethos-u", "vgf"):
        for need in BACKENDS[name].host.missing():
            pytest.skip(f"{name} needs {need.what}: {need.remedy}")
    import executorch.backends.arm.quantizer as quantizer
    from executorch.backends.arm.ethosu import EthosUCompileSpec
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.vgf import VgfCompileSpec

    from pipeline.features.arm.backend import compile_spec
    from pipeline.features.arm.quantizer import quantization

    known = {
        "quantizer": quantizer,
        "EthosUCompileSpec": EthosUCompileSpec,
        "TosaCompileSpec": TosaCompileSpec,
        "VgfCompileSpec": VgfCompileSpec,
        "compile_spec": compile_spec,
        "quantization": quantization,
    }
    return [known[part] for part in parts]


def problems(quantize=None, **partitioner):
    method = {"partitioners": [partitioner] if partitioner else []}
    if quantize is not None:
        method["quantize"] = quantize
    try:
        parse_config("p", {"model": "m", "methods": {"f": method}}, "f.yaml")
    except ConfigErrors as errors:
        return [line.removeprefix("f.yaml: methods.f.") for line in str(errors).splitlines()]
    return []


# What the options say, and what executorch accepts


def test_pass_options_are_the_pipeline_configs():
    of()
    from executorch.backends.arm.common import pipeline_config as upstream

    softmax = [e.name.lower() for e in upstream.SoftmaxDecompositionConfig]
    leaky_relu = [e.name.lower() for e in upstream.LeakyReLULoweringConfig]
    assert softmax == list(get_args(get_args(TosaOptions.model_fields["softmax"].annotation)[0]))
    assert leaky_relu == list(get_args(TosaOptions.model_fields["leaky_relu"].annotation))


@pytest.mark.parametrize("target", NAMES["ethos_u_targets"])
def test_ethos_u_defaults_are_the_compile_specs(target):
    compile_spec, spec = of("compile_spec", "EthosUCompileSpec")
    made = compile_spec(EthosUOptions(target=target))
    assert made._to_list() == spec(target)._to_list()
    names = ETHOS_U_DEFAULTS[target.split("-")[1]]
    assert made.compiler_flags[-2:] == [
        f"--system-config={names[0]}",
        f"--memory-mode={names[1]}",
    ]


def test_tosa_and_vgf_defaults_are_the_compile_specs():
    compile_spec, tosa, vgf = of("compile_spec", "TosaCompileSpec", "VgfCompileSpec")
    made = compile_spec(TosaOptions(tosa_spec="TOSA-1.0+FP"))
    assert made._to_list() == tosa("TOSA-1.0+FP")._to_list()
    assert compile_spec(VgfOptions())._to_list() == vgf()._to_list()


def test_every_option_reaches_the_compile_spec():
    (compile_spec,) = of("compile_spec")
    options = EthosUOptions(
        target="ethos-u85-256",
        system_config="Ethos_U85_SYS_DRAM_High",
        memory_mode="Dedicated_Sram_512KB",
        extra_flags=["--optimise=Size", "--separate-io-regions"],
    )
    (flags,) = [s for s in compile_spec(options)._to_list() if s.key == "compile_flags"]
    assert flags.value.decode().split(" ") == [
        "--optimise=Size",
        "--separate-io-regions",
        "--accelerator-config=ethos-u85-256",
        "--config=Arm/vela.ini",
        "--output-format=raw",
        "--system-config=Ethos_U85_SYS_DRAM_High",
        "--memory-mode=Dedicated_Sram_512KB",
    ]
    vgf = VgfOptions(tosa_spec="TOSA-1.0+FP", compiler_flags=["--require-static-shape"])
    specs = {s.key: bytes(s.value) for s in compile_spec(vgf)._to_list()}
    assert specs["compile_flags"] == b"--require-static-shape"
    assert specs["tosa_spec"] == b"TOSA-1.0+FP"


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_pass_options_keep_the_targets_own_defaults(target):
    """The compile specs, as preprocess reads them, give back the requested options."""
    compile_spec, spec = of("compile_spec", "EthosUCompileSpec")
    plain = spec._from_list(spec(target)._to_list())._get_pass_pipeline_config()
    options = EthosUOptions(target=target, leaky_relu="table", quantize_neg_inf=-8.0)
    made = spec._from_list(compile_spec(options)._to_list())._get_pass_pipeline_config()
    assert made.softmax == plain.softmax
    assert (made.leaky_relu.name, made.quantize_inf.neg_inf) == ("TABLE", -8.0)
    stable = EthosUOptions(target=target, softmax="stable")
    made = spec._from_list(compile_spec(stable)._to_list())._get_pass_pipeline_config()
    assert made.softmax.name == "STABLE"


def test_names_are_velas():
    of()
    import ethosu.vela
    from ethosu.vela.architecture_features import CONFIG_FILES_PATH, Accelerator

    assert list(NAMES["ethos_u_targets"]) == Accelerator.member_list()
    sections = configparser.ConfigParser()
    assert sections.read(Path(CONFIG_FILES_PATH) / OWN_INI), ethosu.vela.__file__
    named = [section.partition(".")[::2] for section in sections.sections()]
    assert [n for kind, n in named if kind == "System_Config"] == list(SYSTEMS)
    assert [n for kind, n in named if kind == "Memory_Mode"] == list(MEMORIES)


def test_flags_that_are_given_anyway_are_velas():
    """Notices a renamed flag; users may pass all others."""
    of()
    from ethosu.vela import vela

    text = inspect.getsource(vela.main)
    assert '"--config"' in text and '"--enable-debug-db"' in text
    assert problems(**{"ethos-u": {**U55, "extra_flags": ["--optimise=Size"]}}) == []


def test_tosa_extensions_are_the_specifications():
    of()
    from executorch.backends.arm.tosa.specification import Tosa_1_00, Tosa_1_1

    for version, upstream in {"1.0": Tosa_1_00, "1.1": Tosa_1_1}.items():
        ours = {profile: set(names) for profile, names in TOSA_EXTENSIONS[version].items()}
        assert ours == {p: set(names) for p, names in upstream.valid_extensions.items()}
        assert set(ours) == set(upstream.available_profiles)


def test_tosa_specs_are_accepted_as_upstream_accepts_them():
    of()
    from executorch.backends.arm.tosa import TosaSpecification

    parts = ["INT", "FP", "int16", "bf16", "u55", "8k", "shape", "nonsense"]
    tried = 0
    for version in ("1.0", "1.1", "1.2"):
        for number in range(4):
            for chosen in itertools.combinations(parts, number):
                text = "+".join([f"TOSA-{version}", *chosen])
                try:
                    theirs = str(TosaSpecification.create_from_string(text))
                except ValueError:
                    theirs = ""
                try:
                    ours = TosaOptions(tosa_spec=text).tosa_spec
                except ValidationError:
                    ours = ""
                if chosen[:1] == ("FP",) and "u55" in chosen:
                    continue  # upstream accepts an integer NPU's subset without its profile
                assert bool(ours) == bool(theirs), text
                tried += bool(ours)
    assert tried > 20


# Quantizers


def test_quantizer_defaults_are_the_functions():
    quantization, quantizer = of("quantization", "quantizer")
    for activations, theirs in {
        "int8": quantizer.get_symmetric_quantization_config(),
        "int16": quantizer.get_symmetric_a16w8_quantization_config(),
    }.items():
        config = EthosUQuantize(quantizer="ethos-u", activations=activations, **U55)
        # As text, since the observers' constructors compare equal only to themselves.
        assert str(quantization(config)) == str(theirs)


def test_quantizer_options_take_effect():
    (quantization,) = of("quantization")
    made = quantization(
        VgfQuantize(
            quantizer="vgf",
            per_channel=False,
            act_qmin=-100,
            act_qmax=100,
            weight_qmin=-7,
            weight_qmax=7,
            eps=0.5,
        )
    )
    import torch

    assert (made.input_activation.quant_min, made.input_activation.quant_max) == (-100, 100)
    assert (made.weight.quant_min, made.weight.quant_max) == (-7, 7)
    assert made.weight.qscheme == torch.per_tensor_symmetric
    assert made.input_activation.observer_or_fake_quant_ctr().eps.item() == 0.5


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (TosaQuantize(quantizer="tosa", tosa_spec="TOSA-1.0+INT"), "TOSAQuantizer"),
        (EthosUQuantize(quantizer="ethos-u", **U55), "EthosUQuantizer"),
        (VgfQuantize(quantizer="vgf"), "VgfQuantizer"),
    ],
)
def test_each_backend_has_its_quantizer(config, kind):
    (quantization,) = of("quantization")
    made = make_quantizer(config)
    assert type(made).__name__ == kind
    assert made.global_config.label == quantization(config).label


# Mistakes in configs


@pytest.mark.parametrize(
    ("partitioner", "says"),
    [
        ({"ethos-u": {}}, "target: is missing"),
        ({"ethos-u": {"target": "ethos-u55-127"}}, "did you mean 'ethos-u55-128'?"),
        ({"ethos-u": {**U55, "system_config": "Ethos_U65_High_End"}}, "with the target's NPU"),
        ({"ethos-u": {**U55, "system_config": "Mine"}}, "known: Ethos_U55_Deep_Embedded"),
        ({"ethos-u": {**U55, "memory_mode": "Sram_Onyl"}}, "did you mean 'Sram_Only'?"),
        ({"ethos-u": {**U55, "config_ini": "/my.ini"}}, "by its path in the workspace"),
        ({"ethos-u": {**U55, "config_ini": "my.cfg"}}, "must end in .ini or be Arm/vela.ini"),
        ({"ethos-u": {**U55, "extra_flags": ["--a b"]}}, "without spaces"),
        ({"ethos-u": {**U55, "extra_flags": ["--conf=my.ini"]}}, "must be one of the known values"),
        ({"ethos-u": {**U55, "extra_flags": ["--timing\n"]}}, "must be one flag"),
        ({"ethos-u": {**U55, "extra_flags": ["--optimise=/x"]}}, "must be one flag"),
        ({"ethos-u": {**U55, "system_config": "A --output-dir=x"}}, "must be a name without"),
        ({"ethos-u": {**U55, "softmax": "masked"}}, "must be stable"),
        ({"tosa": {}}, "tosa_spec: is missing"),
        ({"tosa": {"tosa_spec": "TOSA-1.0+INT+bf16"}}, "must have extensions of its profiles"),
        ({"tosa": {"tosa_spec": "TOSA-1.0+INT+u55", "softmax": "masked"}}, "must be stable"),
        ({"vgf": {"tosa_spec": "INT"}}, "must be a TOSA specification"),
        ({"vgf": {"compiler_flags": ["-o"]}}, "must be one flag"),
        ({"vgf": {"compiler_flags": ["--output=x"]}}, "must be one of the known values"),
    ],
)
def test_partitioner_options_that_can_not_work_are_refused(partitioner, says):
    (problem,) = problems(**partitioner)
    assert problem.startswith("partitioners[0].") and says in problem


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dynamic": True}, "dynamic: is true, must be false"),
        ({"activations": "int16", "weight_qmax": 7}, "weight_qmax: is 7, must be 127 with int16"),
        ({"target": "ethos-u85-128"}, "has target ethos-u85-128, the partitioner ethos-u55-128"),
        ({"leaky_relu": "table"}, "has leaky_relu table, the partitioner decompose"),
    ],
)
def test_quantizer_options_that_can_not_work_are_refused(options, says):
    quantize = {"quantizer": "ethos-u", **U55, **options}
    (problem,) = problems(quantize, **{"ethos-u": U55})
    assert problem.startswith("quantize") and says in problem


def test_int16_activations_take_the_extension():
    (problem,) = problems(
        {"quantizer": "tosa", "tosa_spec": "TOSA-1.0+INT", "activations": "int16"}
    )
    assert "unless tosa_spec has the extension int16" in problem
    assert problems({"quantizer": "vgf", "activations": "int16"}) == []


# Fixed bugs


def edge_program(model, *inputs):
    from executorch.exir import to_edge
    from torch.export import export

    return to_edge(export(model.eval().requires_grad_(False), inputs)).exported_program()


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("ethos-u", U55),
        ("tosa", {"tosa_spec": "TOSA-1.0+INT"}),
        ("vgf", {"tosa_spec": "TOSA-1.0+INT"}),
    ],
)
def test_a_method_without_quantization_stays_undelegated_with_a_warning(backend, options, caplog):
    of()
    import torch

    program = edge_program(torch.nn.Linear(4, 4), torch.ones(1, 4))
    made = BACKENDS[backend].lowering.make_partitioner(BACKENDS[backend].options(**options))
    ((key, value),) = options.items()
    hint = f"add `quantize: {{quantizer: {backend}, {key}: {value}}}` or leave {backend} out"
    assert not made.partition(program).partition_tags
    assert "quantized; the method has none" in caplog.text and hint in caplog.text


def test_integers_need_no_quantizer():
    of()
    import torch

    class Add(torch.nn.Module):
        def forward(self, x):
            return x + x

    made = BACKENDS["ethos-u"].lowering.make_partitioner(EthosUOptions(**U55))
    assert made.partition(edge_program(Add(), torch.ones(4, dtype=torch.int32))).partition_tags


def test_partitions_are_in_order_whatever_the_set_gives(monkeypatch):
    of()
    import torch
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

    class Apart(torch.nn.Module):
        def forward(self, x):
            for _ in range(12):
                x = torch.sort(torch.relu(x))[0]
            return x

    tagged = TOSAPartitioner._tag_module
    unordered = ["tag10", "tag2", "tag0"]

    def tag(self, *given):
        found = tagged(self, *given)
        assert len(found) == 12
        return [*unordered, *sorted(found - set(unordered))]

    monkeypatch.setattr(TOSAPartitioner, "_tag_module", tag)
    made = BACKENDS["tosa"].lowering.make_partitioner(TosaOptions(tosa_spec="TOSA-1.0+FP"))
    tags = made.partition(edge_program(Apart(), torch.ones(4))).partition_tags
    assert list(tags) == [f"tag{number}" for number in range(12)]


def test_parts_of_a_partition_are_numbered_as_the_graph_goes(monkeypatch):
    """A dequantized value that the CPU reads as well leaves the partition, which then splits.
    Upstream numbers the parts in the order of a set of nodes, which is by address."""
    of()
    import torch
    from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
    from executorch.backends.arm.tosa import partitioner as upstream
    from executorch.exir import to_edge
    from torch.export import export

    ops = torch.ops.quantized_decomposed
    scale = (0.05, 0, -128, 127, torch.int8)

    class Falling(torch.nn.Module):
        def forward(self, x):
            x, sorts = ops.quantize_per_tensor(x, *scale), []
            for _ in range(4):
                y = torch.relu(ops.dequantize_per_tensor(x, *scale))
                shared = ops.dequantize_per_tensor(ops.quantize_per_tensor(y, *scale), *scale)
                sorts.append(torch.sort(shared)[0])
                x = ops.quantize_per_tensor(torch.relu(shared), *scale)
            y = torch.relu(ops.dequantize_per_tensor(x, *scale))
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(y, *scale), *scale), *sorts

    program = export(Falling(), (torch.ones(1, 8),))
    for node in program.graph.nodes:
        if node.op == "call_function" and "sort" not in node.name and "getitem" not in node.name:
            mark = ArmAnnotationInfo(quantized=True)
            node.meta.setdefault("custom", {})[ArmAnnotationInfo.CUSTOM_META_KEY] = mark
    edge = to_edge(program).exported_program()
    original = upstream._find_connected_components

    def numbers(order):
        fallen = []

        def shuffled(nodes):
            found = sorted(original(nodes), key=lambda part: min(str(node) for node in part))
            fallen.append(len(found))
            return found[::order]

        monkeypatch.setattr(upstream, "_find_connected_components", shuffled)
        made = BACKENDS["tosa"].lowering.make_partitioner(TosaOptions(tosa_spec="TOSA-1.0+INT"))
        result = made.partition(edge)
        assert fallen == [5]
        return [node.meta.get("delegation_tag") for node in edge.graph.nodes], result

    first, result = numbers(1)
    second, _ = numbers(-1)
    assert first == second
    seen = [tag for tag in first if tag is not None]
    assert list(dict.fromkeys(seen)) == list(result.partition_tags)


# The preprocess cache


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("ethos-u", U55),
        ("tosa", {"tosa_spec": "TOSA-1.0+INT"}),
        ("vgf", {"tosa_spec": "TOSA-1.0+INT"}),
    ],
)
def test_a_cached_partition_is_what_a_fresh_one_would_be(backend, options, tmp_path):
    """This holds even for a program with other names, which TOSA's payload contains."""
    of()
    import torch
    from torch.export import export

    from pipeline.compile.emit import emit
    from pipeline.compile.lower import lower
    from pipeline.compile.preprocess.cache import counted_preprocess
    from pipeline.features.quantization.quantize import quantize
    from pipeline.program.inputs import as_input_sets
    from pipeline.store.store import Store

    class Short(torch.nn.Module):
        def forward(self, x):
            return x + x

    class Named(torch.nn.Module):
        def forward(self, renamed):
            return renamed + renamed

    inputs = as_input_sets([(torch.linspace(-1, 1, 16),)], "example")
    config = BACKENDS[backend].quantization.options(quantizer=backend, **options)

    def quantized(model):
        return quantize(export(model, inputs[0].args), config, inputs)

    def lowered(program, store):
        made = BACKENDS[backend].lowering.make_partitioner(BACKENDS[backend].options(**options))
        with counted_preprocess() as counts:
            manager = lower({"forward": program}, {"forward": [made]}, store=store)
        return emit(manager).buffer, (counts.hits, counts.misses, counts.uncached)

    store = Store(tmp_path)
    program = quantized(Short())
    fresh, counts = lowered(program, None)
    assert counts == (0, 0, 1)
    assert lowered(program, store) == (fresh, (0, 1, 0))
    assert lowered(program, store) == (fresh, (1, 0, 0))
    program = quantized(Named())
    renamed, _ = lowered(program, None)
    assert lowered(program, store)[0] == renamed


INI = """
[System_Config.Board]
core_clock=100e6
axi0_port=Sram
axi1_port=OffChipFlash
Sram_clock_scale=1.0
OffChipFlash_clock_scale=0.5

[Memory_Mode.Board]
const_mem_area=Axi1
arena_mem_area=Axi0
cache_mem_area=Axi0
"""


def test_vela_reads_a_file_of_the_users_own(tmp_path):
    of()
    import torch
    from torch.export import export

    from pipeline.compile.emit import emit
    from pipeline.compile.lower import lower
    from pipeline.compile.preprocess.cache import counted_preprocess
    from pipeline.features.quantization.quantize import quantize
    from pipeline.program.inputs import as_input_sets
    from pipeline.store.store import Store

    x = torch.linspace(-1, 1, 3 * 16 * 16).reshape(1, 3, 16, 16)
    inputs = as_input_sets([(x,)], "example")
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, stride=2)]
    model = torch.nn.Sequential(*layers).eval().requires_grad_(False)
    config = EthosUQuantize(quantizer="ethos-u", **U55)
    program = quantize(export(model, inputs[0].args), config, inputs)
    store = Store(tmp_path / "store")

    def lowered(path, text):
        path.write_text(text)
        options = EthosUOptions(
            **U55, config_ini="a.ini", system_config="Board", memory_mode="Board"
        )
        assert (
            list(find_misfits(options.model_copy(update={"config_ini": path.name}), tmp_path)) == []
        )
        made = BACKENDS["ethos-u"].lowering.make_partitioner(
            options.model_copy(update={"config_ini": str(path)})
        )
        with counted_preprocess() as counts:
            manager = lower({"forward": program}, {"forward": [made]}, store=store)
        return emit(manager).buffer, (counts.hits, counts.misses)

    first, counts = lowered(tmp_path / "a.ini", INI)
    assert counts == (0, 1) and str(tmp_path).encode() not in first
    assert lowered(tmp_path / "b.ini", INI) == (first, (1, 0))
    other, counts = lowered(tmp_path / "a.ini", INI + "arena_cache_size=512\n")
    assert counts == (0, 1) and len(other) != len(first)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            INI.replace("System_Config.Board", "System_Config.Bored"),
            "system_config: is 'Board', but a.ini has no section [System_Config.Board]; "
            "did you mean 'Bored'? known: Bored",
        ),
        ("axi0_port=Sram", "config_ini: is not an .ini file: File contains no section headers."),
    ],
)
def test_what_a_file_of_the_users_own_lacks_is_told(tmp_path, text, says):
    (tmp_path / "a.ini").write_text(text)
    options = EthosUOptions(**U55, config_ini="a.ini", system_config="Board", memory_mode="Board")
    ((option, what, known),) = find_misfits(options, tmp_path)
    assert f"{option}: {what}; {known}".startswith(says)


# The tools on this machine


def test_another_converter_counts_and_is_called(monkeypatch, tmp_path):
    vgf = BACKENDS["vgf"]
    monkeypatch.delenv("MODEL_CONVERTER_PATH", raising=False)
    assert vgf.host.facts() == {}
    with vgf.preprocessing.around():
        assert os.environ["MODEL_CONVERTER_PATH"] == converter()
    assert "MODEL_CONVERTER_PATH" not in os.environ
    own = tmp_path / "converter"
    own.write_text("#!/bin/sh\n")
    monkeypatch.setenv("MODEL_CONVERTER_PATH", str(own))
    assert any("MODEL_CONVERTER_PATH" in need.what for need in vgf.host.missing())
    own.chmod(0o755)
    assert not any("MODEL_CONVERTER_PATH" in need.what for need in vgf.host.missing())
    first = vgf.host.facts()
    own.write_text("#!/bin/sh\nexit 1\n")
    assert list(first) == list(vgf.host.facts()) == ["model converter"]
    assert first != vgf.host.facts()
    with vgf.preprocessing.around():
        assert os.environ["MODEL_CONVERTER_PATH"] == str(own)
    assert os.environ["MODEL_CONVERTER_PATH"] == str(own)


def test_what_the_emulation_lacks_is_told(monkeypatch, tmp_path):
    """One thing at a time, in the order in which a user would set it up."""
    driver = tmp_path / "driver.json"
    monkeypatch.setattr(vulkan_driver, "_DRIVERS", ())
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_INSTANCE_LAYERS", "VK_LAYER_PATH"):
        monkeypatch.delenv(name, raising=False)

    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(vulkan_driver.ctypes, "CDLL", no_library)
    assert "libvulkan.so.1" in arm_emulation.missing()
    monkeypatch.setattr(vulkan_driver.ctypes, "CDLL", lambda name: None)
    assert "Vulkan driver" in arm_emulation.missing()
    monkeypatch.setenv("VK_DRIVER_FILES", str(driver))
    assert "Vulkan driver" in arm_emulation.missing()
    driver.write_text("{}")
    assert "VK_INSTANCE_LAYERS lacks" in arm_emulation.missing()
    monkeypatch.setenv("VK_INSTANCE_LAYERS", ":".join(arm_emulation.LAYERS))
    assert "no manifests" in arm_emulation.missing()
    for name, folder in arm_emulation.LAYERS.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "layer.json").write_text(f'{{"layer": {{"name": "{name}"}}}}')
    folders = [str(tmp_path / folder) for folder in arm_emulation.LAYERS.values()]
    monkeypatch.setenv("VK_LAYER_PATH", ":".join(folders))
    assert arm_emulation.missing() == ""


def test_the_emulation_is_set_up_with_whole_paths(monkeypatch, tmp_path):
    of()
    driver = tmp_path / "driver.json"
    driver.write_text("{}")
    for name, value in arm_emulation.set_up(tmp_path / "layers").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VK_DRIVER_FILES", str(driver))
    monkeypatch.setattr(vulkan_driver.ctypes, "CDLL", lambda name: None)
    assert arm_emulation.missing() == ""
    libraries = [
        json.loads(path.read_text())["layer"]["library_path"]
        for path in (tmp_path / "layers").glob("*/*.json")
    ]
    assert len(libraries) == 2
    assert all(Path(library).is_file() for library in libraries)
