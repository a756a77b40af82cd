"""OpenVINO as a catalogue entry: lowered through doit in float32, int8 and weight-only, and run.
Needs the extra: pip install -e '.[openvino]'."""

import json
import os
import platform
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest
from pydantic import ValidationError

from pipeline.backends import BACKENDS
from pipeline.features.openvino.blob import UnknownBlobError, without_counters
from pipeline.features.openvino.entries import OpenvinoOptions, OpenvinoQuantize
from pipeline.features.openvino.saturation import lacks_vnni
from pipeline.store.errors import ConfigErrors
from tests.support.bench import REPOSITORY
from tests.support.configs import parse_config
from tests.support.lowerable import (
    bench_for,
    both,
    check_delegated,
    check_fresh_checkout_hits,
    check_ran,
    check_same_bytes,
    manifest_of,
)
from tests.support.refused import left_by

pytestmark = pytest.mark.slow

needs_openvino = pytest.mark.skipif(
    not (find_spec("openvino") and find_spec("nncf")),
    reason="needs openvino and nncf: pip install 'pte-pipeline[openvino]'",
)

# A CPU with bfloat16 uses it by default, and is then off by 1e-3 from float32.
FLOAT32 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
# Without VNNI, int8 sums saturate: up to 0.11 on this model, instead of 0.05.
HAS_VNNI = not lacks_vnni()
LOOSE = {"validate": {"atol": 0.2, "min_sqnr": 20.0}}


def quantized(features, classify):
    """Return a config with separate options for each method."""
    return {
        "methods": {
            name: {"partitioners": ["openvino"], "quantize": {"quantizer": "openvino", **options}}
            for name, options in (("features", features), ("classify", classify))
        }
    }


INT4 = {"group_size": 8, "all_layers": True}
CONFIGS = {
    "fp32": both(partitioners=["openvino"]),
    "int8": quantized({}, {"mode": "int8_mixed"}) | LOOSE,
    "transformer": quantized({"mode": "int8_transformer"}, {"smooth_quant": True})
    | {"validate": {"atol": 0.2, "min_sqnr": 10.0}},
    "int8wo": quantized({"mode": "int8wo_sym"}, {"mode": "int8wo_asym"})
    | {"validate": {"atol": 0.02, "min_sqnr": 30.0}},
    "int4wo": quantized({"mode": "int4wo_sym", **INT4}, {"mode": "int4wo_asym", **INT4})
    | {"validate": {"atol": 0.5, "min_sqnr": 10.0}},
}
SKIPPING = both(partitioners=[{"openvino": {"op_types_to_skip": ["aten.relu.default"]}}])


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(
        tmp_path_factory.mktemp("openvino") / "workspace", CONFIGS | {"skipping": SKIPPING}
    )
    with pytest.MonkeyPatch.context() as environment:
        for name, value in FLOAT32.items():
            environment.setenv(name, value)
        # In a process: a fork of this one has already read the variable, with torch or an earlier
        # module.
        assert bench.process(timeout=900) == (0 if HAS_VNNI else 1), bench.output
        yield bench


@needs_openvino
@pytest.mark.parametrize("package", CONFIGS)
def test_everything_is_delegated_and_runs(bench, package):
    check_delegated(bench, package, "OpenvinoBackend", 1.0)
    if package == "int8" and not HAS_VNNI:
        check_saturates(bench)
    else:
        check_ran(bench, package)


def check_saturates(bench):
    """Check that saturated int8 sums fail against the quantized program, with the likely cause."""
    assert "validate:int8 failed: numerics: classify: example 0, output: SQNR" in bench.output
    assert "dB, against its quantized program" in bench.output
    assert "int8/classify, features: warning: openvino: this CPU has no VNNI" in bench.output


@needs_openvino
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 instructions")
def test_int8_sums_that_saturate_are_no_pass(tmp_path, monkeypatch):
    bench = bench_for(tmp_path, {name: CONFIGS[name] for name in ("int8", "int8wo")})
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert bench.process(timeout=300) == 1
    check_saturates(bench)
    told = [line for line in bench.output.splitlines() if "VNNI" in line]
    assert len(told) == 1, "weight-only modes multiply in float"


@needs_openvino
def test_float32_is_as_near_as_float32_is(bench):
    record = json.loads(bench.bytes_of("fp32", "report.json"))
    assert all(method["max_abs"] < 1e-6 for method in record["methods"])


@needs_openvino
def test_bytes_are_those_of_the_joint_call_and_of_another_build(bench):
    check_same_bytes(bench, CONFIGS)


@needs_openvino
def test_a_fresh_checkout_compiles_nothing(bench, tmp_path):
    check_fresh_checkout_hits(bench, tmp_path / "other", "fp32", "int8")


@needs_openvino
def test_what_is_to_be_skipped_is(bench):
    for facts in manifest_of(bench, "skipping")["methods"].values():
        assert facts["delegation"]["undelegated"] == {"aten.relu": 2}


_REPEATED = textwrap.dedent(
    """
    import sys

    from executorch.backends.openvino import partitioner, preprocess
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    from pipeline.backends import BACKENDS
    KEY = bytes.fromhex("3060700204083f6f7274787f")


    def read_model(blob):
        model = blob[int.from_bytes(blob[32:40], "little") :]
        return bytes(c ^ KEY[i % 12] for i, c in enumerate(model)).decode()


    sys.path.insert(0, sys.argv[1])
    from tests.support import lowerable

    space = {}
    exec(lowerable.MODEL, space)
    plain = preprocess.openvino_compile
    raw = []

    def compile_model(*args, **kwargs):
        compiled = plain(*args, **kwargs)
        raw.append(bytes(compiled.export_model().getvalue()))
        return compiled

    preprocess.openvino_compile = compile_model
    made = []
    for _ in range(2):
        with BACKENDS["openvino"].preprocessing.around():
            edge = to_edge_transform_and_lower(
                space["export_methods"](),
                partitioner=[partitioner.OpenvinoPartitioner([CompileSpec("device", b"CPU")])],
            )
        made.append(edge.to_executorch().buffer)
    assert preprocess.openvino_compile is compile_model
    assert made[0] == made[1], "what came before shows"
    first, again = raw[: len(raw) // 2], raw[len(raw) // 2 :]
    assert first != again, "OpenVINO no longer counts; openvino_blob.py can go"
    assert all("Constant_" in read_model(blob) for blob in raw)
    """
)


@needs_openvino
def test_what_the_process_made_before_does_not_show():
    tests = str(REPOSITORY)
    done = subprocess.run(
        [sys.executable, "-c", _REPEATED, tests], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


_DYNAMIC = textwrap.dedent(
    """
    import torch
    from executorch.exir import to_edge_transform_and_lower

    from pipeline.backends import BACKENDS, PartitionerSpec, make_partitioners
    from pipeline.store.errors import PipelineError


    class Flat(torch.nn.Module):
        def forward(self, x, y):
            return torch.relu(x.view(x.shape[0] * 2, 2)) + y.sum()


    size = torch.export.Dim("size", min=2, max=8)
    program = torch.export.export(
        Flat(), (torch.ones(4, 4), torch.ones(4, 4)), dynamic_shapes=({0: size}, {0: size})
    )
    entry = BACKENDS["openvino"]
    partitioners = make_partitioners([PartitionerSpec(name="openvino", options=entry.options())])
    try:
        with entry.preprocessing.around():
            to_edge_transform_and_lower(program, partitioner=partitioners)
    except PipelineError as error:
        print(error)
    """
)


@needs_openvino
def test_a_dynamic_size_that_a_partition_takes_is_told():
    done = subprocess.run(
        [sys.executable, "-c", _DYNAMIC], capture_output=True, text=True, timeout=300
    )
    assert "openvino: a partition has a dynamic size among its inputs" in done.stdout, done.stderr


_CONTROL_FLOW = """
    import logging
    import sys
    from pathlib import Path

    sys.path.insert(0, sys.argv[1])
    from tests.compile import test_control_flow as flow
    from pipeline.backends import BACKENDS, PartitionerSpec
    from pipeline.compile.module_filter import make_filtered_partitioners
    from pipeline.config.emission import EmitConfig
    from pipeline.compile.inspect.delegation import describe_delegation
    from pipeline.compile.emit import emit
    from pipeline.compile.lower import lower

    def lowered(module, store=None, **options):
        entry = BACKENDS["openvino"]
        specs = [PartitionerSpec(name="openvino", options=entry.options(**options))]
        return lower({"run": flow.program_of(module)}, {"run": make_filtered_partitioners(specs)})

    for module in (flow.Map, flow.Scan):
        manager = lowered(module)
        assert describe_delegation(manager.exported_program("run"))["delegated_nodes"]
        made = emit(manager, EmitConfig(remove_view_copy=module is not flow.Scan))
        flow.check_runs(made, module, Path(sys.argv[2]))
    logging.basicConfig(format="TOLD %(message)s", stream=sys.stdout, force=True)
    lowered(flow.Cond)
    made = lowered(flow.Cond, op_types_to_skip=("aten.sum.dim_IntList", "aten.gt.Scalar"))
    assert describe_delegation(made.exported_program("run"))["delegated_nodes"]
    flow.check_runs(emit(made, EmitConfig()), flow.Cond, Path(sys.argv[2]))
    print("TOLD done")
"""


@needs_openvino
def test_control_flow(tmp_path):
    """Bodies stay portable, as with every partitioner that looks only at the outermost graph."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(_CONTROL_FLOW),
            str(REPOSITORY),
            tmp_path,
        ],
        env={**os.environ, **FLOAT32},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD")]
    assert any("a partition returns a tensor without dimensions" in each for each in told)
    assert told[-1] == "TOLD done"


QUANTIZED_ODDLY = """
    import torch
    from pipeline.backends import QUANTIZERS
    from pipeline.store.errors import PipelineError
    from pipeline.program.inputs import as_input_sets
    from pipeline.features.quantization.quantize import quantize
    from torch.export import Dim, export

    class Branches(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    class Sizes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x) * (x.shape[0] * 2)

    x = torch.ones(3, 4)
    sizes = ({0: Dim("n", min=2, max=8)},)
    programs = [
        ("int8wo_sym", export(Branches(), (x,))),
        ("int8_sym", export(Branches(), (x,))),
        ("int8_sym", export(Sizes().eval(), (x,), dynamic_shapes=sizes)),
    ]
    for mode, program in programs:
        spec = QUANTIZERS["openvino"].options(quantizer="openvino", mode=mode)
        try:
            quantize(program, spec, as_input_sets([(x,)], "x") if mode == "int8_sym" else [])
            print("TOLD nothing")
        except PipelineError as error:
            print("TOLD", error)
"""


@needs_openvino
def test_what_nncf_can_not_quantize_is_told():
    """In a separate process: NNCF changes torch when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(QUANTIZED_ODDLY)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD")]
    assert "with control flow, and it has cond; leave out `quantize`" in told[0]
    assert told[1] == told[0]
    assert "computes with its dynamic sizes; export it with fixed sizes" in told[2]


def blob(model):
    """Return a blob laid out as by the CPU plugin, with a header and constants."""
    key = bytes.fromhex("306070020408" + "3f6f7274787f")
    coded = bytes(c ^ key[i % len(key)] for i, c in enumerate(model.encode()))
    return b"".join(
        n.to_bytes(8, "little") for n in (48, 6, 54, 4, 58, len(coded))
    ) + b"customdata"[:6] + b"\1\2\3\4" + coded  # fmt: skip


def model(offset, name="Model7", fused="Constant_{b}, Constant_{a}"):
    names = {"a": offset + 9, "b": offset + 10, "c": offset + 30}
    fused = ", ".join(sorted(fused.format(**names).split(", ")))
    text = """<?xml version="1.0"?>
<net name="{name}" version="11"><layers>
<layer id="0" name="Constant_12x" type="Parameter" version="opset1" />
<layer id="1" name="aten_relu_default_1/aten.relu.default/Relu" type="ReLU" version="opset1">
<attribute name="fused_names" version="0" value="{fused}, aten_relu_default_1/a" />
</layer>
<layer id="2" name="Result_{c}/sink_port_0" type="Result" version="opset1" />
</layers></net>"""
    return text.format(name=name, fused=fused, **names)


def test_counted_names_are_numbered_anew_and_no_others():
    # As text, 9 and 10 sort in another order than 109 and 110.
    blobs = {without_counters(blob(model(offset, f"Model{offset}"))) for offset in (0, 90, 100)}
    assert len(blobs) == 1
    (one,) = blobs
    text = bytes(
        c ^ bytes.fromhex("3060700204083f6f7274787f")[i % 12] for i, c in enumerate(one[58:])
    ).decode()
    assert int.from_bytes(one[40:48], "little") == len(one) - 58
    assert one[48:58] == b"custom\1\2\3\4"
    assert '<net name="Model" ' in text
    assert 'name="Constant_12x"' in text
    assert 'name="aten_relu_default_1/aten.relu.default/Relu"' in text
    assert 'name="Result_0/sink_port_0"' in text
    assert 'value="Constant_1, Constant_2, aten_relu_default_1/a"' in text
    assert without_counters(one) == one


@pytest.mark.parametrize(
    "wrong",
    [b"", b"short", blob(model(0))[:-1], blob(model(0)) + b"x", blob("no XML at all")],
)
def test_what_is_no_blob_is_refused(wrong):
    with pytest.raises(UnknownBlobError):
        without_counters(wrong)


def problems(quantize):
    config = {
        "model": "small",
        "methods": {
            "f": {"partitioners": ["openvino"], "quantize": {"quantizer": "openvino", **quantize}}
        },
    }
    with pytest.raises(ConfigErrors) as raised:
        parse_config("package", config, "package.yaml")
    return str(raised.value)


def test_options_of_another_mode_are_refused():
    told = problems({"mode": "int8wo_sym", "smooth_quant": True, "group_size": 32})
    assert told.splitlines() == [
        "package.yaml: methods.f.quantize.group_size: is 32, which mode int8wo_sym does not have; "
        "int4wo_sym and int4wo_asym do",
        "package.yaml: methods.f.quantize.smooth_quant: is true, which mode int8wo_sym does not "
        "have; int8_sym, int8_mixed and int8_transformer do",
    ]


def test_dynamic_is_refused_with_what_there_is():
    assert "is true, must be false: this quantizer doesn" in problems({"dynamic": True})


def test_only_what_observes_calibrates():
    def calibrates(**options):
        return OpenvinoQuantize(quantizer="openvino", **options).calibrates

    assert calibrates()
    assert calibrates(mode="int8_transformer")
    assert not calibrates(mode="int8wo_asym")
    assert not calibrates(mode="int4wo_sym")
    assert calibrates(mode="int4wo_sym", scale_estimation=True)


def test_lists_name_each_once():
    with pytest.raises(ValidationError):
        OpenvinoOptions(op_types_to_skip=("aten.relu.default",) * 2)


@needs_openvino
def test_a_device_that_is_not_there_is_told():
    script = (
        "from pipeline.backends import BACKENDS\n"
        "entry = BACKENDS['openvino']\n"
        "entry.lowering.make_partitioner(entry.options(device='NPU'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "openvino: device NPU is not on this machine" in done.stderr


def test_the_cpu_counts_for_keys():
    facts = BACKENDS["openvino"].machine["facts"]
    assert {"cpu", "cpus", "instructions", "machine"} <= facts.keys()
    assert all(isinstance(value, str) for value in facts.values())


@needs_openvino
def test_what_openvino_leaves_has_its_reason():
    types = ("aten.argmax.default", "aten.exp.default")
    told = left_by("openvino", op_types_to_skip=types, op_names_to_skip=("aten_asinh_default",))
    assert told["aten.exp"] == "`op_types_to_skip` names it"
    assert told["aten.asinh"] == "`op_names_to_skip` names it"
    assert told["aten.trunc"] == "its partitioner doesn't support operators of this type"
