"""Every shipped package: built by `doit`, equal to ExecuTorch's joint call, validated."""

import importlib.util
import inspect
import json
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils import _pytree as pytree

from benchmarks import plain
from pipeline import load_package
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import Session
from pipeline.plan.plan import Plan
from pipeline.program.archive import load_program
from pipeline.program.inputs import load_inputs
from pipeline.program.signature import argument_names
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import REPOSITORY, Bench
from tests.support.joint import joint_call
from tests.support.matrix import in_tiers

PACKAGES = sorted(path.stem for path in (REPOSITORY / "partition_configs").glob("*.yaml"))

# Beyond ExecuTorch's API: a backend that is a function, torchao's schemes from a config.
OWN = {"add_sub", "language_model-4bit"}
SCRIPTED = {"language_model", "router", "vision-int8"}

SET_BY_SKLEARN = "KMP_DUPLICATE_LIB_OK"
pytestmark = pytest.mark.slow


class Shipped(Bench):
    """A copy of the shipped workspace, with the environment's store if there is one."""

    @property
    def store(self) -> Path:
        return Path(os.environ.get("PTE_PIPELINE_STORE") or self.root / ".store")


@pytest.fixture(autouse=True)
def shell_environment(monkeypatch):
    """Remove a variable that sklearn sets, which another test may have imported.

    Keys contain it, so nothing built from a shell would be a hit.
    """
    monkeypatch.delenv(SET_BY_SKLEARN, raising=False)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    root = tmp_path_factory.mktemp("shipped")
    for name in ("models", "partition_configs"):
        shutil.copytree(REPOSITORY / name, root / name)
    shutil.copy(REPOSITORY / "dodo.py", root)
    bench = Shipped(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SET_BY_SKLEARN, raising=False)
        code = bench.doit(timeout=1200)
    assert code == 0, bench.output
    return bench


def imported(path):
    """Import an exporter as a script would. torch looks up the modules of control flow by name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".pte", ".ptd")}


@pytest.mark.parametrize("package", in_tiers([p for p in PACKAGES if p not in OWN], SCRIPTED))
def test_bytes_are_those_of_a_users_script(shipped, package, tmp_path):
    """A script that calls only ExecuTorch's API writes the same files."""
    config = yaml.safe_load((shipped.root / "partition_configs" / f"{package}.yaml").read_text())
    model = imported(shipped.root / "models" / f"{config['model']}.py")
    calibration = getattr(model, "calibration_inputs", None)
    programs = {name: program for name, (program, _) in model.export_methods().items()}
    plain.build(config, programs, tmp_path / package, calibration)
    assert files_of(shipped.root / "build" / package) == files_of(tmp_path / package)


@pytest.mark.parametrize("package", in_tiers(sorted(OWN), ["add_sub"]))
def test_bytes_are_those_of_the_joint_call(shipped, package):
    plan = Plan(Workspace(shipped.root, Store(shipped.store), 1))
    manager = joint_call(plan, package)
    assert not manager._tensor_data
    made = {f"{package}.pte": bytes(manager.buffer)}
    assert files_of(shipped.root / "build" / package) == made


@pytest.mark.parametrize("package", PACKAGES)
def test_validation_ran_on_every_method(shipped, package):
    record = json.loads(shipped.bytes_of(package, "report.json"))
    plan = Plan(Workspace(shipped.root, Store(shipped.store), 1))
    programs = {m["method"]: m for m in record["methods"] if m["kind"] == "program"}
    assert record["ok"] and set(programs) == set(plan.methods(package))
    assert all(method["runs"] for method in programs.values())


def test_manifest_names_what_a_package_was_made_of(shipped):
    manifest = json.loads(shipped.bytes_of("vision-mixed", "manifest.json"))
    methods = manifest["methods"]
    assert methods["embed"]["delegation"]["partitions"] == {}
    mixed = methods["features"]["delegation"]["partitions"]["XnnpackBackend"]
    assert mixed > methods["classify"]["delegation"]["partitions"]["XnnpackBackend"]
    assert manifest["toolchain"]["executorch"] == version("executorch")
    pte = shipped.bytes_of("vision-mixed", "vision-mixed.pte")
    assert manifest["files"]["vision-mixed.pte"]["size"] == len(pte)
    assert str(shipped.root) not in json.dumps(manifest)


def test_state_dynamic_sizes_and_several_calls_were_validated(shipped):
    record = json.loads(shipped.bytes_of("language_model", "report.json"))
    decode = next(m for m in record["methods"] if m["method"] == "decode")
    assert decode["state"] and max(run["step"] for run in decode["runs"]) >= 4
    speech = json.loads(shipped.bytes_of("speech", "report.json"))
    encode = next(m for m in speech["methods"] if m["method"] == "encode")
    assert len({run["origin"] for run in encode["runs"]}) >= 4


@pytest.mark.parametrize(
    ("package", "decibel"),
    [("language_model", 110), ("language_model-int8", 36), ("language_model-4bit", 18)],
)
def test_decode_reads_what_prefill_wrote(shipped, package, decibel):
    """The package's sequence matches the eager model's. If `decode` had a separate cache, its SQNR
    would be 17 dB."""
    source = imported(shipped.root / "models" / "language_model.py")
    model = source.build()
    prefill, decode = source.Prefill(model), source.Decode(model)
    loaded = load_package(shipped.root / "build" / package / f"{package}.pte")
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(source.VOCABULARY, (1, 20), generator=generator)
    pairs = [(loaded.prefill(tokens[:, :12]), prefill(tokens[:, :12]))]
    for at in range(12, 20):
        token, position = tokens[:, at : at + 1], torch.tensor([at])
        pairs.append((loaded.decode(token, position), decode(token, position)))
    for actual, expected in pairs:
        noise = (actual - expected).square().sum()
        assert 10 * torch.log10(expected.square().sum() / noise) > decibel


@pytest.mark.parametrize("package", PACKAGES)
def test_interpreter_and_executorch_agree(shipped, package):
    """They run on standard normal inputs of the largest sizes, twice in a row for state. If
    activations are quantized, a difference in the last bit can round one of them the other way.
    What only the interpreter runs is left to validation."""
    folder = shipped.root / "build" / package
    pte = folder / f"{package}.pte"
    files = PackageFiles.of(pte, sorted(folder.glob("*.ptd")))
    runtime, walked = Session(files, "executorch"), Session(files, "interpreter")
    facts = json.loads(shipped.bytes_of(package, "manifest.json"))["methods"]
    tolerance = 2e-2 if any(each["quantized"] for each in facts.values()) else 2e-5
    chosen = Session(files)
    for method in runtime.methods():
        if chosen.choose_device(method) == "interpreter":
            assert package == "add_sub"
            continue
        declared = runtime.signature(method)
        generator = torch.Generator().manual_seed(0)
        inputs = [_value(shape, generator) for shape in declared.inputs]
        for _ in range(2):
            pairs = zip(walked.run(method, inputs), runtime.run(method, inputs), strict=True)
            for actual, expected in pairs:
                if isinstance(expected, torch.Tensor):
                    limits = {"atol": tolerance, "rtol": tolerance}
                    torch.testing.assert_close(actual, expected, **limits)
                else:
                    assert actual == expected


def _value(shape, generator):
    if shape is None:
        return None
    if shape.dtype.is_floating_point:
        return torch.randn(shape.sizes, generator=generator).to(shape.dtype)
    return torch.randint(0, 2, shape.sizes, generator=generator).to(shape.dtype)


@pytest.mark.parametrize("package", PACKAGES)
def test_loaded_methods_have_the_signatures_of_their_sources(shipped, package):
    plan = Plan(Workspace(shipped.root, Store(shipped.store), 1))
    loaded = load_package(shipped.root / "build" / package / f"{package}.pte")
    for name, source in plan.methods(package).items():
        program = load_program(source.archive, source.entry)
        names, keywords = argument_names(program)
        parameters = inspect.signature(loaded[name]).parameters
        assert list(parameters) == [*names, *keywords] and loaded[name].has_names
        for example in load_inputs(Store(shipped.store).read(source.examples))[:1]:
            returned = loaded[name](*example.args, **example.kwargs)
            spec = program.call_spec.out_spec
            assert pytree.tree_structure(returned) == spec
