"""Backends that this machine can't lower to: what a plan says of a config that uses one, and their
options against the installed source."""

import ast
import subprocess
import sys
from typing import get_args

import pytest
import yaml
from conftest import bench_of

from pipeline.backends import BACKENDS, describe
from pipeline.backends import cortex_m as by_passes
from pipeline.backends.vendors import mediatek, qualcomm, samsung
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

REQUIRED = {
    "qualcomm": {"soc_model": "SM8750"},
    "mediatek": {"platform": "mt6991"},
    "samsung": {"chipset": "E9955"},
    "nxp": {"target": "imxrt700"},
}
NEEDS = {
    "qualcomm": "qualcomm needs Qualcomm's AI Engine Direct SDK (QNN) and cpuinfo; get it from "
    "Qualcomm's developer site and set QNN_SDK_ROOT to its folder, pip install py-cpuinfo",
    "mediatek": "mediatek needs mtk_converter and mtk_neuron; get MediaTek's NeuroPilot Express "
    "SDK from its portal and install its wheels",
    "samsung": "samsung needs Samsung's Exynos AI LiteCore SDK and "
    "executorch.backends.samsung.python.PyEnnWrapperAdaptor; get it from Samsung's developer site "
    "and set EXYNOS_AI_LITECORE_ROOT to its folder, build executorch from source with the SDK "
    "(backends/samsung/build.sh)",
    "nxp": "nxp needs eiq_neutron_sdk; install NXP's eIQ Neutron SDK as ExecuTorch's "
    "examples/nxp/setup.sh does",
    "cuda": "cuda needs a CUDA build of torch and triton and an Nvidia GPU; install torch 2.13.0 "
    "from PyTorch's index for CUDA, pip install triton, build on a machine that has one",
    "metal": "metal needs a Mac; build on macOS",
}
LACKING = [name for name in NEEDS if list(BACKENDS[name].missing())]


@pytest.fixture(autouse=True)
def without_sdks(monkeypatch):
    for variable in ("QNN_SDK_ROOT", "EXYNOS_AI_LITECORE_ROOT"):
        monkeypatch.delenv(variable, raising=False)


def bench_with(tmp_path, **methods):
    """The sample `pair` and a config `vendor` beside its own, of these methods."""
    bench = bench_of("pair", tmp_path)
    config = yaml.safe_load((bench.root / "partition_configs" / "pair.yaml").read_text())
    config["methods"] = {
        name: {"partitioners": []} | methods.get(name, {}) for name in config["methods"]
    }
    (bench.root / "partition_configs" / "vendor.yaml").write_text(yaml.safe_dump(config))
    return bench, list(config["methods"])


def problems(bench):
    plan = Plan(Workspace(bench.root, Store(bench.store), 1))
    assert not plan.problems("pair")
    return [str(problem) for problem in plan.problems("vendor")]


@pytest.mark.parametrize("name", LACKING)
def test_a_use_is_one_line_that_says_what_is_missing_and_where_to_get_it(tmp_path, name):
    bench, (first, *_) = bench_with(tmp_path)
    item = {name: REQUIRED[name]} if name in REQUIRED else name
    bench, _ = bench_with(tmp_path / "used", **{first: {"partitioners": [item]}})
    assert problems(bench) == [
        f"partition_configs/vendor.yaml:8: methods.{first}.partitioners[0]: {NEEDS[name]}"
    ]


def test_what_is_lowered_by_passes_of_cadence_is_told(tmp_path):
    name = "cadence"
    bench, (first, *_) = bench_with(tmp_path)
    bench, _ = bench_with(tmp_path / "used", **{first: {"partitioners": [name]}})
    (told,) = problems(bench)
    assert f"partitioners[0]: {name} is not supported: ExecuTorch lowers to it by graph pas" in told


def test_wrong_options_are_told_in_the_same_answer(tmp_path):
    bench, (first, *_) = bench_with(tmp_path)
    wrong = {"soc_model": "SM8751", "use_fp61": True, "use_node_optimizations": False}
    quantize = {"quantizer": "mediatek", "precision": "A8W9", "dynamic": True}
    method = {"partitioners": [{"qualcomm": wrong}], "quantize": quantize}
    bench, _ = bench_with(tmp_path / "used", **{first: method})
    told = "\n".join(problems(bench))
    path = f"methods.{first}.partitioners[0]"
    assert f"{path}: qualcomm needs Qualcomm's AI Engine" in told
    assert f"{path}.qualcomm.soc_model: is 'SM8751', must be one of those known; did you" in told
    assert f"{path}.qualcomm: unknown key 'use_fp61'; did you mean 'use_fp16'?" in told
    assert (
        f"{path}.qualcomm.use_node_optimizations: is false, which processor htp does not have; "
        "gpu does" in told
    )
    assert f"methods.{first}.quantize: mediatek needs mtk_converter and mtk_neuron" in told
    assert f"methods.{first}.quantize.precision: is 'A8W9'" in told
    assert "must be false: this quantizer has no dynamic quantization" in told
    assert len(told.splitlines()) == 7


@pytest.mark.slow
def test_other_packages_are_built_and_nothing_of_the_vendor_is_imported(tmp_path):
    bench, (first, *_) = bench_with(tmp_path)
    item = {"qualcomm": REQUIRED["qualcomm"]}
    bench, _ = bench_with(tmp_path / "used", **{first: {"partitioners": [item]}})
    assert bench.doit("lower") != 0
    assert "qualcomm needs Qualcomm's AI Engine" in bench.output
    assert "Traceback" not in bench.output
    assert "QNN SDK" not in bench.output
    assert (bench.root / "build" / "pair" / "pair.pte").exists()
    assert not (bench.root / "build" / "vendor").exists()


@pytest.mark.parametrize("name", LACKING)
def test_parts_are_refused_before_anything_is_imported(name):
    script = (
        "import sys\n"
        "from pipeline.backends import BACKENDS\n"
        "from pipeline.store.errors import PipelineError\n"
        f"entry, options = BACKENDS[{name!r}], {REQUIRED.get(name, {})!r}\n"
        "try:\n    entry.make_partitioner(entry.options(**options))\n"
        "except PipelineError as error:\n    print(error)\n"
        "assert not [m for m in sys.modules if m.startswith('executorch')]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name} needs ")


@pytest.mark.parametrize("name", [n for n in LACKING if BACKENDS[n].quantizer])
def test_quantizers_are_refused_too(name):
    entry = BACKENDS[name]
    with pytest.raises(PipelineError, match=f"{name} needs "):
        entry.make_quantizer(entry.quantizer(quantizer=name))


def test_a_folder_for_the_sdk_is_what_the_variable_asks_for(monkeypatch, tmp_path):
    def missing():
        return [need.what for need in qualcomm.QUALCOMM.missing()]

    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path / "none"))
    assert any("SDK" in what for what in missing())
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    assert not any("SDK" in what for what in missing())


def test_another_sdk_is_another_key(monkeypatch, tmp_path):
    library = tmp_path / "lib" / "x86_64-linux-clang" / "libQnnHtp.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"one")
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    before = qualcomm.QUALCOMM.machine["facts"]
    library.write_bytes(b"another")
    after = qualcomm.QUALCOMM.machine["facts"]
    assert before != after
    assert set(before) == {"lib/x86_64-linux-clang/libQnnHtp.so"}


QUALCOMM = "executorch.backends.qualcomm."
MEMBERS = [
    (
        qualcomm.QualcommChipset,
        f"{QUALCOMM}serialization.qc_schema:QcomChipset",
        "",
        {"UNKNOWN_SM"},
    ),
    (
        qualcomm.QualcommPerformance,
        f"{QUALCOMM}serialization.qc_schema:QnnExecuTorchHtpPerformanceMode",
        "kHtp",
        set(),
    ),
    (
        qualcomm.QualcommGpuPrecision,
        f"{QUALCOMM}serialization.qc_schema:QnnExecuTorchGpuPrecision",
        "kGpuPrecision",
        set(),
    ),
    (
        qualcomm.QualcommDtype,
        f"{QUALCOMM}quantizer.quantizer:QuantDtype",
        "use_",
        {"16a4w_block", "fp16a8w", "16a2w"},
    ),
    (
        mediatek.MediatekQuantize.model_fields["precision"].annotation,
        "executorch.backends.mediatek.quantizer.qconfig:Precision",
        "",
        set(),
    ),
    (
        samsung.SamsungOptions.model_fields["chipset"].annotation,
        "executorch.backends.samsung.serialization.compile_options:SamsungChipset",
        "",
        {"UNDEFINED_CHIP_V"},
    ),
    (
        by_passes.CortexMOptions.model_fields["cpu"].annotation,
        "executorch.backends.cortex_m.target_config:CortexM",
        "",
        set(),
    ),
]


@pytest.mark.parametrize(("ours", "theirs", "prefix", "without"), MEMBERS)
def test_names_are_the_installed_ones(ours, theirs, prefix, without):
    installed = [name.removeprefix(prefix) for name in describe.members(theirs)]
    assert list(get_args(ours)) == [name for name in installed if name not in without]


def test_platforms_of_mediatek_are_the_installed_ones():
    tree = ast.parse(describe.source_of("executorch.backends.mediatek.preprocess").read_text())
    (found,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "SUPPORTED_PLATFORM_CONFIGS"
    )
    platforms = mediatek.MediatekOptions.model_fields["platform"].annotation
    assert set(get_args(platforms)) == found


SOURCES = {
    "qualcomm": "executorch.backends.qualcomm.qnn_preprocess",
    "mediatek": "executorch.backends.mediatek.preprocess",
    "samsung": "executorch.backends.samsung.enn_preprocess",
    "nxp": "executorch.backends.nxp.nxp_backend",
    "cuda": "executorch.backends.cuda.cuda_backend",
    "metal": "executorch.backends.apple.metal.metal_backend",
}


@pytest.mark.parametrize("name", SOURCES)
def test_backend_id_and_joint_are_those_of_the_source(name):
    entry = BACKENDS[name]
    text = describe.source_of(SOURCES[name]).read_text()
    (details,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == entry.backend_id
    )
    assert "BackendDetails" in {base.id for base in details.bases}
    inherited = describe.source_of("executorch.backends.aoti.aoti_backend").read_text()
    overridden = "def preprocess_multimethod" in text + inherited * (name in ("cuda", "metal"))
    assert entry.joint == overridden
