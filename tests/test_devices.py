"""The contracts of the device interface, on every device that this package has."""

import copy
import subprocess
import sys

import pytest
import torch
from conftest import REPOSITORY
from test_runtime import exported, package_file, programs, write
from torch import nn

from pipeline.devices.interface import (
    DeclaredTensor,
    DeviceData,
    DeviceError,
    DeviceId,
    PackageFiles,
    Runtime,
    metric_report,
)
from pipeline.devices.plans import read_plans
from pipeline.devices.registry import Registry, devices
from pipeline.devices.session import Session
from pipeline.store.errors import PipelineError

X = torch.tensor([1.0, 2.0, 3.0])
VECTOR = DeclaredTensor((3,), torch.float32)


@pytest.fixture(params=["executorch", "interpreter", "reference"])
def runtime(request):
    return devices().get(request.param)


@pytest.fixture
def program(runtime):
    """Of test_runtime's methods, in the form that the device takes."""
    return programs() if runtime.type == "reference" else PackageFiles.of(package_file())


def run(runtime, computation, *values):
    results = runtime.execute(computation, [runtime.to_device(value) for value in values])
    return [runtime.to_host(data) for data in results]


def compiled(runtime, method, program):
    (computation,) = runtime.compile([runtime.lower(method, program)])
    return computation


# The registry.


class Other(Runtime):
    """A device that does nothing but tell that it is given up."""

    type = "other"
    exits = 0

    def devices(self):
        return [DeviceId("other", 0), DeviceId("other", 1)]

    def methods(self, program):
        return []

    def declared(self, program, method):
        raise DeviceError("", "nothing")

    def load(self, computation):
        return None

    def call(self, computation, values):
        return []

    def prepare_to_exit(self):
        Other.exits += 1


def test_an_empty_registry_says_so():
    registry = Registry()
    assert registry.names() == [] and registry.devices() == []
    with pytest.raises(PipelineError, match="no device is registered"):
        registry.get()
    with pytest.raises(PipelineError, match="device 'executorch': no device is registered"):
        registry.get("executorch")


def test_a_name_twice_is_an_error_that_names_both():
    registry = Registry()
    registry.register("other", Other, "first")
    with pytest.raises(PipelineError, match="'other' of second: is there already, of first"):
        registry.register("other", Other, "second")


def test_an_unknown_device_is_told_with_those_that_are_known():
    with pytest.raises(PipelineError, match="no device 'interpeter'; did you mean 'interpreter'"):
        devices().get("interpeter")
    with pytest.raises(PipelineError, match="known: executorch, interpreter, reference"):
        devices().set_default("gpu")


def test_a_runtime_is_made_once_and_when_it_is_asked_for():
    registry = Registry()
    registry.register("broken", lambda: 1 / 0, "a plugin")
    registry.register("other", Other)
    assert registry.get("other") is registry.get("other")
    with pytest.raises(PipelineError, match="'broken' of a plugin: cannot be made: ZeroDiv"):
        registry.get("broken")


def test_devices_are_listed_by_type_and_number():
    registry = Registry()
    registry.register("other", Other)
    assert [str(device) for device in registry.devices()] == ["other:0", "other:1"]
    assert DeviceId.parse("other") == DeviceId("other", 0) < DeviceId.parse("other:1")
    for wrong in ("", ":1", "other:", "other:x"):
        with pytest.raises(PipelineError, match="must be a type or type:number"):
            DeviceId.parse(wrong)


def test_the_default_is_the_first_until_it_is_set():
    registry = Registry()
    registry.register("other", Other)
    registry.register("more", Other)
    assert registry.default == "other" and registry.chosen == ""
    registry.set_default("more")
    assert registry.default == registry.chosen == "more"
    assert devices().default == "executorch"


def test_a_default_that_was_set_runs_packages():
    registry = devices()
    assert str(Session(PackageFiles.of(package_file())).device_of("count")) == "executorch:0"
    registry.set_default("interpreter")
    try:
        assert str(Session(PackageFiles.of(package_file())).device_of("count")) == "interpreter:0"
    finally:
        registry._default = ""


def test_runtimes_are_told_when_the_process_ends():
    code = """
import sys
sys.path.insert(0, "tests")
from pipeline.devices.registry import devices
from pipeline.devices.executorch import ExecutorchRuntime
ExecutorchRuntime.prepare_to_exit = lambda self: print("given up", self.type)
devices().get("executorch")
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, timeout=60
    )
    assert done.stdout.splitlines() == ["done", "given up executorch"], done.stderr


def test_the_executorch_device_does_not_import_exir():
    code = f"""
import sys
from pathlib import Path
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import Session
Session(PackageFiles.of(Path({str(package_file())!r}))).load("encode")
sys.exit("executorch.exir" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=60)


# Data.


def test_values_go_there_and_back(runtime):
    data = runtime.to_device(X)
    assert data.has_value and data.shape == VECTOR and data.device == runtime.default_device
    back = runtime.to_host(data)
    assert torch.equal(back, X) and back.data_ptr() != X.data_ptr()
    back.add_(1)
    assert torch.equal(runtime.to_host(data), X)
    assert runtime.to_host(data, torch.float64).dtype == torch.float64
    scalar = runtime.to_device(3)
    assert scalar.shape is None and runtime.to_host(scalar) == 3


def test_a_placeholder_has_no_value_until_it_is_assigned(runtime):
    data = runtime.placeholder(VECTOR)
    assert not data.has_value
    with pytest.raises(DeviceError, match="has no value yet"):
        runtime.to_host(data)
    other = runtime.to_device(X)
    data.assign(other)
    assert data.has_value and torch.equal(runtime.to_host(data), X)
    assert data.handle != other.handle


def test_what_cannot_be_assigned(runtime):
    data = runtime.placeholder(VECTOR)
    with pytest.raises(DeviceError, match="has no value yet"):
        data.assign(runtime.placeholder(VECTOR))
    with pytest.raises(DeviceError, match=r"is of float32\[3\], not float32\[4\]"):
        data.assign(runtime.to_device(torch.ones(4)))
    with pytest.raises(DeviceError, match=r"is of float32\[3\], not int64\[3\]"):
        data.assign(runtime.to_device(torch.ones(3, dtype=torch.int64)))
    with pytest.raises(DeviceError, match=r"is of float32\[3\], not no tensor"):
        data.assign(runtime.to_device(3))
    with pytest.raises(DeviceError, match="cannot take the value of a handle on other:1"):
        data.assign(DeviceData(DeviceId("other", 1), VECTOR, X))
    assert not data.has_value


def test_info_is_attached_to_a_handle(runtime):
    data = runtime.placeholder(VECTOR)
    assert data.info is None
    assert data.set_info("first") is None
    assert data.set_info("second") == "first" and data.info == "second"


def test_a_device_that_is_not_there(runtime):
    missing = DeviceId(runtime.type, 7)
    for wrong in (missing, DeviceId("other")):
        with pytest.raises(DeviceError, match=f"no such device; known: {runtime.type}:0"):
            runtime.placeholder(VECTOR, wrong)


# Lowering.


def test_a_context_collects_parameters_and_results(runtime, program):
    context = runtime.lowering_context("count", program)
    assert context.add_parameter(runtime.placeholder(VECTOR), "x") == 0
    assert context.add_result(VECTOR, "total") == 0
    assert len(context.parameters) == 1 and not context.parameters[0].has_value
    assert context.check_result_shape(context.parameters[0], 0)
    computation = context.build()
    assert computation.parameter_names == ("x",) and computation.parameter_shapes == (VECTOR,)
    assert computation.result_names == ("total",) and computation.result_shapes == (VECTOR,)
    assert computation.name == "count" and computation.compiled is None
    assert str(computation) == "count(x: float32[3]) -> (float32[3])"


def test_a_context_refuses_what_the_method_does_not_declare(runtime, program):
    context = runtime.lowering_context("count", program)
    with pytest.raises(DeviceError, match="method 'count' has 0 parameters, must have 1"):
        context.build()
    with pytest.raises(DeviceError, match="parameter 'x' is on other:0, must be on"):
        context.add_parameter(DeviceData(DeviceId("other"), VECTOR), "x")
    context.add_parameter(runtime.placeholder(DeclaredTensor((4,), torch.float32)), "x")
    context.add_result(VECTOR)
    assert not context.check_result_shape(context.parameters[0], 0)
    with pytest.raises(DeviceError, match=r"parameter 0 is float32\[4\], must be float32\[3\]"):
        context.build()


def test_methods_and_what_they_declare(runtime, program):
    names = runtime.methods(program)
    assert names == sorted(names) and set(programs()) <= set(names)
    declared = runtime.declared(program, "encode")
    assert declared.inputs == (DeclaredTensor((10, 4), torch.float32),)
    assert declared.outputs == (DeclaredTensor((10, 3), torch.float32),)
    assert runtime.declared(program, "pass").inputs[1] is None
    with pytest.raises(PipelineError, match="no method 'decode'"):
        runtime.declared(program, "decode")


# Compiling and executing.


def test_several_computations_are_compiled_and_executed(runtime, program):
    lowered_ones = [runtime.lower(name, program) for name in ("count", "embed")]
    count, embed = runtime.compile(lowered_ones)
    assert all(each.compiled is None for each in lowered_ones)
    assert run(runtime, count, X)[0].tolist() == [2.0, 4.0, 6.0]
    rows, tokens = run(runtime, embed, torch.tensor([1, 2, 6]), torch.tensor(2.0))
    assert rows.shape == (3, 4) and tokens.tolist() == [1, 2, 6]


def test_state_is_that_of_a_compiled_computation(runtime, program):
    first = compiled(runtime, "count", program)
    assert [run(runtime, first, X)[0][0].item() for _ in range(3)] == [2.0, 4.0, 6.0]
    again = compiled(runtime, "count", program)
    assert run(runtime, again, X)[0][0].item() == 2.0
    assert run(runtime, first, X)[0][0].item() == 8.0


def test_inputs_are_left_alone_and_results_are_handles(runtime, program):
    computation = compiled(runtime, "count", program)
    data = runtime.to_device(X)
    (first,) = runtime.execute(computation, [data], computation.device)
    (second,) = runtime.execute(computation, [data])
    assert first.shape == VECTOR and first.handle != second.handle
    assert [runtime.to_host(each)[0].item() for each in (first, second)] == [2.0, 4.0]
    assert torch.equal(runtime.to_host(data), X)


def test_what_cannot_be_executed(runtime, program):
    lowered_one = runtime.lower("count", program)
    with pytest.raises(DeviceError, match="count: is not compiled"):
        runtime.execute(lowered_one, [runtime.to_device(X)])
    (computation,) = runtime.compile([lowered_one])
    with pytest.raises(DeviceError, match="takes 1 inputs, 0 given"):
        runtime.execute(computation, [])
    with pytest.raises(DeviceError, match="has no value yet"):
        runtime.execute(computation, [runtime.placeholder(VECTOR)])
    with pytest.raises(DeviceError, match="'input_0' is on other:0, must be on"):
        runtime.execute(computation, [DeviceData(DeviceId("other"), VECTOR, X)])
    with pytest.raises(DeviceError, match="no such device"):
        runtime.execute(computation, [runtime.to_device(X)], DeviceId("other"))
    with pytest.raises(DeviceError):
        run(runtime, compiled(runtime, "embed", program), torch.tensor([9, 9, 9]), torch.ones(()))
    assert run(runtime, computation, X)[0].tolist() == [2.0, 4.0, 6.0]


def test_text_of_a_computation(runtime, program):
    text = runtime.text(runtime.lower("embed", program))
    assert text.startswith("embed(input_0: int64[3], input_1: float32[]) -> (float32[3, 4]")
    assert "embedding" in text and len(text.splitlines()) >= 3


def test_metrics_count(runtime, program):
    before = dict(runtime.metrics())
    run(runtime, compiled(runtime, "count", program), X)
    after = runtime.metrics()
    for what in ("computations compiled", "computations executed"):
        assert after[what] == before.get(what, 0) + 1
    assert after["seconds executing"] > before["seconds executing"]
    assert any(line.startswith("computations compiled: ") for line in metric_report(after))


class Noise(nn.Module):
    def forward(self, x):
        return torch.bernoulli(torch.full_like(x, 0.5))


def test_a_seed_makes_random_operators_repeat_themselves():
    reference = devices().get("reference")
    program = {"noise": exported(Noise(), torch.ones(64))}
    computation = compiled(reference, "noise", program)
    outer = torch.get_rng_state()
    draws = []
    for _ in range(2):
        reference.set_seed(7)
        draws.append([run(reference, computation, torch.ones(64))[0] for _ in range(2)])
    reference._random = None
    assert all(torch.equal(a, b) for a, b in zip(*draws, strict=True))
    assert not torch.equal(*draws[0])
    assert torch.equal(torch.get_rng_state(), outer)


def test_the_reference_device_leaves_the_program_alone():
    reference = devices().get("reference")
    program = programs()
    before = copy.deepcopy(program["count"].state_dict)
    run(reference, compiled(reference, "count", program), X)
    after = program["count"].state_dict
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


# Which device runs what.


def test_plans_are_read_without_exir():
    plans = read_plans(package_file().read_bytes())
    assert plans["encode"].delegates == ("XnnpackBackend",) and plans["encode"].operators == ()
    assert plans["count"].delegates == () and "aten::copy_" in plans["count"].operators
    assert read_plans(b"no package") == read_plans(b"") == {}
    content = package_file().read_bytes()
    for end in (12, 60, 200):
        assert isinstance(read_plans(content[:end]), dict)


def test_what_nothing_runs_is_told_by_executorch():
    content = package_file().read_bytes().replace(b"XnnpackBackend", b"OtherBackend..")
    session = Session(PackageFiles.of(write("nobody.pte", content)))
    assert str(session.device_of("encode")) == "executorch:0"
    with pytest.raises(DeviceError, match="method 'encode' does not load: missing backend"):
        session.load("encode")
