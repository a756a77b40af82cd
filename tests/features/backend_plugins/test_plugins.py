"""A backend from another distribution works in the catalogue, configs and plans as ours do."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.support.lowerable import (
    OneProcess,
    bench_for,
    both,
    check_not_run,
    check_ran,
    manifest_of,
)
from tests.support.patches import python_path

PLUGIN = '''
"""Delegates additions and multiplications to the demo backend that ExecuTorch's tests use."""

from pydantic import Field

from pipeline.backends import Backend, Execution, Lowering, Options, Preprocessing


class AcmeOptions(Options):
    level: int = Field(default=1, ge=0, le=3, description="How much to optimize.")


def make_partitioner(options):
    from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo

    print("acme at level", options.level)
    return AddMulPartitionerDemo()


BACKEND = Backend(
    name="acme",
    backend_id="BackendWithCompilerDemo",
    summary="Acme's accelerator",
    options=AcmeOptions,
    lowering=Lowering(make_partitioner=make_partitioner),
    execution=Execution(cannot_run=lambda: "needs a board of Acme's"),
)
'''
MODEL = """
import torch
from torch.export import export


class Mul(torch.nn.Module):
    def forward(self, x):
        return torch.mul(x, x) + x


class Other(torch.nn.Module):
    def forward(self, x):
        return torch.add(x, x)


def export_methods():
    x = (torch.ones(2, 2),)
    return {"features": export(Mul(), x), "classify": export(Other(), x)}
"""


DEVICE = '''

from pipeline.backends.delegate_runtime import DelegateRuntime


class AcmeDelegate(DelegateRuntime):
    """The demo backend's partitions here are one addition each."""

    def init(self, processed_bytes, compile_specs, named_data):
        assert b"aten.add" in processed_bytes
        return None

    def execute(self, handle, inputs):
        return [inputs[0] + inputs[-1]]


def make_device():
    from pipeline.devices.interface import Device

    class AcmeDevice(Device):
        def methods(self, files):
            return ["features"]

        def declared(self, files, method):
            raise NotImplementedError

        load = call = declared

    return AcmeDevice()


BACKEND = dataclasses.replace(BACKEND, execution=Execution(make_runtime=AcmeDelegate))
'''


def install(folder, code=PLUGIN, version="1.0", target="acme_backend:BACKEND"):
    """Install a distribution in the layout that pip uses."""
    (folder / "acme_backend.py").write_text(code)
    info = folder / "acme_delegate-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: acme-delegate\nVersion: {version}\n"
    )
    points = f"[pte_pipeline.backends]\nacme = {target}\n"
    if "make_device" in code:
        points += "[pte_pipeline.devices]\nacme = acme_backend:make_device\n"
        points += "executorch = acme_backend:AcmeOptions\n"
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder)
    return folder


def python(site, code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": python_path(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_stands_in_catalogue_and_schema_without_torch(site):
    out = python(
        site,
        """
        import sys, json
        from pipeline.backends import BACKENDS, PLUGIN_PROBLEMS
        from tests.support.configs import parse_config
        from pipeline.features.catalogue.listing import list_backends, describe_backend
        acme = BACKENDS["acme"]
        assert acme.plugin == "acme-delegate" and not PLUGIN_PROBLEMS
        assert "acme-delegate" in acme.host.distributions
        data = {"model": "m", "methods": {"f": {"partitioners": [{"acme": {"level": 2}}]}}}
        assert parse_config("p", data, "f").methods["f"].partitioners[0].options.level == 2
        assert any("Acme's accelerator" in line for line in list_backends())
        assert any("level: whole number 0..3 = 1" in line for line in describe_backend("acme"))
        from pipeline.features.schemas.config_schema import json_schema
        assert "AcmeOptions" in json_schema()["$defs"]
        print("torch" in sys.modules)
        """,
    )
    assert out.strip() == "False"


NAMESAKES = """
from typing import Literal

from pydantic import Field

from pipeline.backends import Backend, Options, Quantization, QuantizeConfig

NO_PARTS = {"backend_id": "None", "summary": "None"}


def model(name, base=Options, **fields):
    fields = {n: (t, Field(description=n)) for n, t in fields.items()}
    types = {n: t for n, (t, _) in fields.items()}
    values = {n: field for n, (_, field) in fields.items()}
    return type(name, (base,), {"__module__": __name__, "__annotations__": types, **values})


Matrix, File, Variable = (model(name, a=int) for name in ("Matrix", "File", "Variable"))
Part = model("MethodConfigPart", b=int)
OPTIONS = model("XnnpackOptions", matrix=Matrix, file=File, variable=Variable, part=Part)
METHOD = model("MethodConfig", level=int)
QUANTIZE = model("XnnpackScheme", QuantizeConfig, quantizer=Literal["acme"], steps=int)
BACKENDS = [
    Backend(name="acme", options=OPTIONS, quantization=Quantization(options=QUANTIZE), **NO_PARTS),
    Backend(name="bare", options=Options, **NO_PARTS),
    Backend(name="other", options=METHOD, **NO_PARTS),
]
"""


def test_models_that_are_called_as_ours_are_told_apart_in_the_schema(site):
    install(site, NAMESAKES, target="acme_backend:BACKENDS")
    out = python(
        site,
        """
        import jsonschema
        from pipeline.backends import PLUGIN_PROBLEMS
        from pipeline.features.schemas.config_schema import json_schema
        assert not PLUGIN_PROBLEMS, PLUGIN_PROBLEMS
        schema = json_schema()
        valid = jsonschema.Draft202012Validator(schema).is_valid

        def method(**parts):
            return {"model": "m", "methods": {"f": {"partitioners": [], **parts}}}

        def partitioner(name, **options):
            return method(partitioners=[{name: options}])

        inner = {"matrix": {"a": 1}, "file": {"a": 1}, "variable": {"a": 1}, "part": {"b": 1}}
        lr = {"quantizer": "xnnpack", "modules": {"a": {"dynamic": True}}}
        good = [
            partitioner("acme", **inner), partitioner("other", level=1), partitioner("bare"),
            partitioner("xnnpack", per_op_mode=True), method(quantize=lr),
            method(quantize={"quantizer": "acme", "steps": 3}), {"methods": {"f": {}}},
            {**partitioner("xnnpack"), "matrix": {"v": ["a"]}},
            {"methods": {"f": {"quantize": {"dynamic": None}}}}, {"defaults": {"modules": ["a"]}},
            partitioner("acme", **{**inner, "part": {"b": "${B}"}}),
        ]
        bad = [
            partitioner("acme", per_op_mode=True), partitioner("other", partitioners=[]),
            partitioner("xnnpack", matrix={"a": 1}), partitioner("bare", level=1),
            partitioner("acme", **{**inner, "matrix": {"v": ["a"]}}),
            method(level=1), method(quantize={"quantizer": "acme", "per_channel": True}),
            method(quantize={**lr, "steps": 3}), {"defaults": {"level": 1}},
        ]
        print([valid(each) for each in good], [valid(each) for each in bad])
        """,
    )
    assert out.strip() == f"{[True] * 11} {[False] * 9}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"code": "raise OSError('no licence')"}, "OSError: no licence"),
        ({"target": "acme_backend:AcmeOptions"}, "not iterable"),
        (
            {"code": PLUGIN.replace('name="acme"', 'name="xnnpack"')},
            "'xnnpack', which already exists",
        ),
    ],
)
def test_one_that_is_wrong_is_told_where_its_backend_is_asked_for(site, change, words):
    install(site, **change)
    out = python(
        site,
        """
        from tests.support.configs import parse_config
        from pipeline.store.errors import ConfigErrors
        data = {"model": "m", "methods": {"f": {"partitioners": ["acme"]}}}
        try:
            parse_config("p", data, "f.yaml")
        except ConfigErrors as errors:
            print(errors)
        """,
    )
    assert "unknown partitioner 'acme'" in out
    assert "plugin acme-delegate:acme cannot be used" in out and words in out


@pytest.mark.slow
def test_packages_are_built_with_it_and_follow_its_code(site, tmp_path):
    bench = bench_for(tmp_path / "workspace", {"board": both(partitioners=["acme"])}, OneProcess)
    (bench.root / "models" / "small.py").write_text(MODEL)
    path = {"PYTHONPATH": python_path(site)}
    assert bench.doit(**path) == 0, bench.output
    counts = manifest_of(bench, "board")["methods"]["features"]["delegation"]
    assert counts["partitions"] == {"BackendWithCompilerDemo": 1}
    check_not_run(bench, "board", "needs a board of Acme's")
    assert bench.doit(**path) == 0 and "up to date: 1 package" in bench.output
    install(site, PLUGIN.replace("acme at level", "acme, level"))
    assert bench.doit(**path) == 0, bench.output
    assert bench.outcomes()["compile board/features"] == "built"
    assert json.loads(bench.bytes_of("board", "report.json"))["ok"]
    assert bench.doit() == 1  # uninstalled
    assert "unknown partitioner 'acme'" in bench.output


# Just a partitioner and a preprocess function
FUNCTION = """
def partitioner(options):
    from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo
    from executorch.exir.backend.partitioner import DelegationSpec

    made = AddMulPartitionerDemo()
    made.delegation_spec = DelegationSpec(BACKEND.backend_id, [])
    return made


def preprocess(program, compile_specs):
    from executorch.exir.backend.backend_details import PreprocessResult

    operators = [n.target.__name__ for n in program.graph.nodes if n.op == "call_function"]
    return PreprocessResult(processed_bytes="+".join(operators).encode())
"""


def with_function(backend_id, details=""):
    start, entry = PLUGIN.split("BACKEND = ")
    entry = entry.replace("BackendWithCompilerDemo", backend_id).replace(
        "make_partitioner=make_partitioner),",
        "make_partitioner=partitioner),\n    preprocessing=Preprocessing("
        f"function='acme_backend:preprocess', details={details!r}),",
    )
    return f"{start}{FUNCTION}\nBACKEND = {entry}"


@pytest.mark.slow
def test_a_backend_needs_nothing_but_a_function(site, tmp_path):
    install(site, with_function("AcmeBackend"))
    bench = bench_for(tmp_path / "workspace", {"board": both(partitioners=["acme"])}, OneProcess)
    (bench.root / "models" / "small.py").write_text(MODEL)
    path = {"PYTHONPATH": python_path(site)}
    assert bench.doit(**path) == 0, bench.output
    counts = manifest_of(bench, "board")["methods"]["features"]["delegation"]
    assert counts["partitions"] == {"AcmeBackend": 1}
    assert b"aten.add.Tensor" in bench.bytes_of("board", "board.pte")
    check_not_run(bench, "board", "needs a board of Acme's")
    # With a class in addition: the plan says which of the two is called.
    install(site, with_function("AcmeBackend", details="acme_sdk.delegate:AcmeBackend"))
    assert bench.doit("plan", **path) == 0
    said = "acme is preprocessed by acme_backend:preprocess, not by acme_sdk.delegate:AcmeB"
    assert said in bench.output


def test_a_function_for_somebody_elses_delegate_is_refused(site):
    """It would lower packages that use the other's entry, without a trace in their keys."""
    install(site, with_function("XnnpackBackend"))
    out = python(
        site,
        """
        from pipeline.backends import BACKENDS, PLUGIN_PROBLEMS
        assert "acme" not in BACKENDS
        print(PLUGIN_PROBLEMS["acme-delegate:acme"])
        """,
    )
    assert "provides a different preprocess function for XnnpackBackend than 'xnnpack'" in out


QUANTIZER = """
from typing import Literal
from pipeline.backends import Quantization, QuantizeConfig


class AcmeQuantize(QuantizeConfig):
    quantizer: Literal["acme"] = Field(description="This one.")
    symmetric: bool = Field(default=True, description="Whether ranges are.")


def quantizer(options):
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    made = xnnpack.XNNPACKQuantizer()
    return made.set_global(xnnpack.get_symmetric_quantization_config())
"""
CALIBRATION = """

def calibration_inputs(method):
    yield (torch.full((2, 2), 0.5),)
"""


@pytest.mark.slow
def test_its_quantizer_quantizes_for_whatever_partitioner(site, tmp_path):
    start, entry = PLUGIN.split("BACKEND = ")
    own = (
        "quantization=Quantization(options=AcmeQuantize, make_quantizer=quantizer),\n    execution="
    )
    install(site, f"{start}{QUANTIZER}\nBACKEND = {entry.replace('execution=', own)}")
    method = {"quantize": {"quantizer": "acme"}, "partitioners": ["xnnpack"]}
    config = both(**method) | {"validate": {"atol": 10.0}}
    bench = bench_for(tmp_path / "workspace", {"board": config}, OneProcess)
    (bench.root / "models" / "small.py").write_text(MODEL + CALIBRATION)
    path = {"PYTHONPATH": python_path(site)}
    assert bench.doit(**path) == 0, bench.output
    assert "quantize board/features" in bench.outcomes(), bench.outcomes()
    check_ran(bench, "board")
    errors = json.loads(bench.bytes_of("board", "report.json"))["worst"]
    assert 0 < errors["features"] < 10  # float would have no error
    assert bench.doit(**path) == 0 and "up to date: 1 package" in bench.output


def with_device():
    return "import dataclasses\n" + PLUGIN + DEVICE


@pytest.mark.slow
def test_its_runtime_of_delegates_runs_its_packages(site, tmp_path):
    install(site, with_device())
    bench = bench_for(tmp_path / "workspace", {"board": both(partitioners=["acme"])}, OneProcess)
    (bench.root / "models" / "small.py").write_text(MODEL)
    path = {"PYTHONPATH": python_path(site)}
    assert bench.doit(**path) == 0, bench.output
    check_ran(bench, "board")
    install(site, with_device().replace("inputs[0] +", "inputs[0] * 2 +"))
    assert bench.doit(**path) == 1, bench.output  # its code counts
    assert "absolute error" in bench.output


def test_its_device_is_there_by_name(site):
    install(site, with_device())
    out = python(
        site,
        """
        import sys
        from pipeline.devices.registry import devices
        from pipeline.store.errors import PipelineError
        assert devices().names() == [
            "acme", "acme-delegate.executorch", "board:<name>", "executorch", "interpreter",
                "native", "qemu:<cpu>",
        ]
        assert "torch" not in sys.modules and "acme_backend" not in sys.modules
        assert devices().get("acme").methods(None) == ["features"]
        try:
            devices().get("acme-delegate.executorch")
        except PipelineError as error:
            print(error)
        """,
    )
    assert "'acme-delegate.executorch' of acme-delegate: cannot be made: TypeError: acme_b" in out
