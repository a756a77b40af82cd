"""Vendors' backends, which are rows of data: what plans say about configs that use one, and the
rows against the installed source."""

import ast
import subprocess
import sys
import textwrap

import pytest
import yaml

from pipeline.backends import BACKENDS
from pipeline.features.backend_plugins import vendors
from pipeline.features.catalogue.listing import describe_backend
from pipeline.features.constructor_options.constructors import constructors
from pipeline.plan.plan import Plan
from pipeline.store.releases import installed_release
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import bench_of
from tools import describe_constructors as describe

_UPGRADE = "pip install 'executorch>=1.5'; "


def release_needed(name, words):
    """Return the words if the installed ExecuTorch lacks the backend."""
    return words if name in installed_release().lacks else ""


# What each needs in addition to a plugin, and where to get it.
NEEDS = {
    "qualcomm": (
        "Qualcomm's AI Engine Direct SDK (QNN), cpuinfo, ",
        "get the SDK from Qualcomm's developer site and set QNN_SDK_ROOT to its folder; "
        "pip install py-cpuinfo; ",
    ),
    "mediatek": (
        "mtk_converter, mtk_neuron, ",
        "get MediaTek's NeuroPilot Express SDK from its portal and install its wheels; ",
    ),
    "samsung": (
        "Samsung's Exynos AI LiteCore SDK, "
        "executorch.backends.samsung.python.PyEnnWrapperAdaptor, ",
        "get the SDK from Samsung's developer site and set EXYNOS_AI_LITECORE_ROOT to its folder; "
        "build executorch from source with the SDK (backends/samsung/build.sh); ",
    ),
    "nxp": (
        "eiq_neutron_sdk, ",
        "install NXP's eIQ Neutron SDK as ExecuTorch's examples/nxp/setup.sh does; ",
    ),
    "cuda": (
        "a CUDA build of torch, triton, an Nvidia GPU, ",
        "install torch 2.13.0 from PyTorch's index for CUDA; pip install triton; build on a "
        "machine with an Nvidia GPU; ",
    ),
    "metal": ("a Mac, ", "build on macOS; "),
    "coreai": (
        f"{release_needed('coreai', 'executorch>=1.5, ')}coreai_torch, ",
        f"{release_needed('coreai', _UPGRADE)}install Apple's coreai-torch; ",
    ),
    "native": (
        release_needed("native", "executorch>=1.5, "),
        release_needed("native", _UPGRADE),
    ),
    "cadence": ("", ""),
}
# Backends none of whose requirements are met here.
LACKING = [
    name for name in NEEDS if not any(need.there() for need in BACKENDS[name].host.requirements)
]


@pytest.fixture(autouse=True)
def without_sdks(monkeypatch):
    for variable in ("QNN_SDK_ROOT", "EXYNOS_AI_LITECORE_ROOT"):
        monkeypatch.delenv(variable, raising=False)


def bench_with(tmp_path, **methods):
    """Return the sample `pair` with an additional config `vendor` of these methods."""
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


def test_every_row_is_told():
    assert set(NEEDS) == {row.name for row in vendors.ENTRIES}


@pytest.mark.parametrize("name", LACKING)
def test_a_use_is_one_line_that_says_what_is_missing_and_where_to_get_it(tmp_path, name):
    bench, (first, *_) = bench_with(tmp_path)
    bench, _ = bench_with(tmp_path / "used", **{first: {"partitioners": [name]}})
    what, remedy = NEEDS[name]
    assert problems(bench) == [
        f"partition_configs/vendor.yaml:8: methods.{first}.partitioners[0]: {name} needs {what}"
        f"a plugin that lowers to it; {remedy}write a plugin (docs/guides/writing-a-backend.md)"
    ]


def test_options_that_nothing_here_knows_are_not_judged(tmp_path):
    bench, (first, *_) = bench_with(tmp_path)
    method = {"partitioners": [{"qualcomm": {"soc_model": "SM8750", "use_dlbc": 2}}]}
    bench, _ = bench_with(tmp_path / "used", **{first: method})
    (line,) = problems(bench)
    assert f"methods.{first}.partitioners[0]: qualcomm needs Qualcomm's AI Engine" in line


def test_a_quantizer_that_nothing_here_calls_is_told(tmp_path):
    bench, (first, *_) = bench_with(tmp_path)
    quantize = {"quantizer": "mediatek", "precision": "A8W8"}
    bench, _ = bench_with(tmp_path / "used", **{first: {"quantize": quantize, "partitioners": []}})
    line, needs = problems(bench)
    assert f"methods.{first}.quantize: mediatek needs mtk_converter, mtk_neuron" in needs
    what = "is mediatek, whose quantizer needs a plugin that is not installed; known: "
    assert f"methods.{first}.quantize.quantizer: {what}" in line


@pytest.mark.parametrize("name", NEEDS)
def test_the_catalogue_says_that_nobody_lowered_to_it_and_where_upstream_describes_it(name):
    lines = [line.strip() for line in describe_backend(name)]
    assert lines[-1] == (
        "Nothing on this machine lowers to it, and it was not tried: it has no options."
    )
    (upstream,) = (line for line in lines if line.startswith("upstream:"))
    assert "executorch" in upstream
    assert not [line for line in lines if line.startswith(("partitioners:", "quantize:"))]
    assert not constructors(f"{name}.lowering") and not constructors(f"{name}.quantization")


@pytest.mark.slow
def test_other_packages_are_built_and_nothing_of_the_vendor_is_imported(tmp_path):
    bench, (first, *_) = bench_with(tmp_path)
    bench, _ = bench_with(tmp_path / "used", **{first: {"partitioners": ["qualcomm"]}})
    assert bench.doit("lower") != 0
    assert "qualcomm needs Qualcomm's AI Engine" in bench.output
    assert "Traceback" not in bench.output
    assert "QNN SDK" not in bench.output
    assert (bench.root / "build" / "pair" / "pair.pte").exists()
    assert not (bench.root / "build" / "vendor").exists()


def test_parts_are_refused_and_nothing_is_imported():
    script = """
        import sys
        from pipeline.backends import PartitionerSpec, make_partitioners
        from pipeline.features.backend_plugins.vendors import ENTRIES
        from pipeline.store.errors import PipelineError
        for row in ENTRIES:
            try:
                make_partitioners([PartitionerSpec(name=row.name, options=row.options())])
            except PipelineError as error:
                assert str(error).startswith(f"{row.name} needs "), error
            else:
                raise AssertionError(row.name)
        assert not {"torch", "executorch"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_a_folder_for_the_sdk_is_what_the_variable_asks_for(monkeypatch, tmp_path):
    def missing():
        return [need.what for need in BACKENDS["qualcomm"].host.missing()]

    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path / "none"))
    assert any("SDK" in what for what in missing())
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    assert not any("SDK" in what for what in missing())
    assert vendors.PLUGIN.what in missing()


SOURCES = {
    "qualcomm": "executorch.backends.qualcomm.qnn_preprocess",
    "mediatek": "executorch.backends.mediatek.preprocess",
    "samsung": "executorch.backends.samsung.enn_preprocess",
    "nxp": "executorch.backends.nxp.nxp_backend",
    "cuda": "executorch.backends.cuda.cuda_backend",
    "metal": "executorch.backends.apple.metal.metal_backend",
    "coreai": "executorch.backends.apple.coreai.compiler.preprocess",
    "native": "executorch.backends.native.preprocess",
}
SOURCES = {name: module for name, module in SOURCES.items() if not release_needed(name, "lacks")}


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
    assert entry.preprocessing.joint == overridden
