"""The interpreter computes the same as ExecuTorch's runtime, from the same bytes."""

import dataclasses
from functools import cache

import executorch.kernels.quantized  # noqa: F401  its out variants, which lowering asks for
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import schema
from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch.export import Dim

from pipeline import backends
from pipeline.backends import BACKENDS, Execution, QuantizeConfig
from pipeline.backends.delegate_runtime import DelegateError, DelegateRuntime, Timing
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.registry import devices
from pipeline.devices.session import Session
from pipeline.features.locating.interpreter import load
from pipeline.features.locating.interpreter.single import ExecutorchDelegate
from pipeline.features.locating.interpreter.slots import RefusalError
from tests.devices.test_bindings import (
    CONSTANTS,
    Counter,
    exported,
    lowered,
    package_file,
    split_package,
    write,
)

CLOSE = {"atol": 2e-6, "rtol": 2e-6}


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Branches(nn.Module):
    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x / 3, (x,))
        return torch.cond(y.sum() > 10, lambda y: y + 1, lambda y: y - 1, (y,))


class Rows(nn.Module):
    def forward(self, x, y):
        return torch_map(lambda row, y: row * y + 1, x, y)


class Of(nn.Module):
    """Computed sizes, views with them, slices."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2))

    def forward(self, x):
        return self.layers(x), x.argmax(1), x.clamp(-1, 1).mean((2, 3))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.layer(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.register_buffer("cache", torch.zeros(1, 16, 8))

    def forward(self, x, position):
        self.cache.index_copy_(1, position, x)
        return self.block(self.cache + x.sum())


ROWS = Dim("rows", min=3, max=8)
LAST = torch.channels_last
CASES = {
    "branches": (Branches(), [(noise(3),), (noise(3, seed=1),), (noise(3).abs() * 9,)], None),
    "rows": (Rows(), [(noise(4, 3), noise(3)), (noise(4, 3, seed=2), noise(3))], None),
    "sizes": (
        Of(lambda x: torch.cat([x, x]) + torch.ones(x.shape[0] * 2, 4)),
        [(noise(rows, 4),) for rows in (4, 8, 3)],
        ({0: ROWS},),
    ),
    "views": (
        Of(lambda x: (x * 2).view(x.shape[0], 2, 2) + 1),
        [(noise(rows, 4),) for rows in (4, 8, 3)],
        ({0: ROWS},),
    ),
    "images": (Images(), [(noise(2, 3, 9, 9),)], None),
    "last": (Convolution(), [(noise(2, 3, 9, 9).to(memory_format=LAST),)], None),
    "attention": (
        Attention(),
        [(noise(1, 1, 8), torch.tensor([n])) for n in (0, 1, 15)],
        None,
    ),
    "started": (Counter(3.0), [(noise(3),), (noise(3),)], None),
}


@cache
def case(name, delegated):
    module, calls, shapes = CASES[name]
    methods = {"run": exported(module, *calls[0], shapes=shapes)}
    partitioners = {"run": [XnnpackPartitioner()]} if delegated else None
    passes = [InitializedMutableBufferPass(["total"])] if name == "started" else []
    manager = lowered(methods, partitioners, passes=passes)
    return PackageFiles.of(write(f"{name}-{delegated}.pte", manager.buffer)), calls


def check_agree(files, method, calls, **tolerance):
    """Check that both devices give the same results, call after call."""
    sessions = [Session(files, device) for device in ("executorch", "interpreter")]
    for inputs in calls:
        expected, actual = (session.run(method, list(inputs)) for session in sessions)
        assert len(expected) == len(actual)
        for one, other in zip(actual, expected, strict=True):
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other, **(tolerance or CLOSE))
                assert one.stride() == other.stride()
            else:
                assert one == other and type(one) is type(other)


# XNNPACK takes nothing of the branches.
BOTH = [(name, False) for name in CASES] + [(name, True) for name in CASES if name != "branches"]


@pytest.mark.parametrize(
    ("name", "delegated"), BOTH, ids=lambda v: {True: "xnnpack", False: "portable"}.get(v, v)
)
def test_both_devices_agree(name, delegated):
    files, calls = case(name, delegated)
    check_agree(files, "run", calls)


def test_they_agree_on_constants():
    for name in CONSTANTS:
        check_agree(PackageFiles.of(package_file()), name, [()])


def test_int8_is_the_same_to_the_bit():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, x):
            return self.layers(x)

    from pipeline.features.quantization.quantize import quantize
    from pipeline.program.inputs import InputSet
    from tests.support.configs import parse_config

    data = {
        "model": "m",
        "methods": {"f": {"quantize": {"quantizer": "xnnpack"}, "partitioners": ["xnnpack"]}},
    }
    config = parse_config("p", data, "f").methods["f"].quantize
    assert isinstance(config, QuantizeConfig)
    program = quantize(
        exported(Net(), noise(4, 8)), config, [InputSet((noise(4, 8, seed=s),)) for s in range(4)]
    )
    for partitioners in (None, {"run": [XnnpackPartitioner()]}):
        content = lowered({"run": program}, partitioners).buffer
        files = PackageFiles("int8.pte", bytes(content))
        check_agree(files, "run", [(noise(4, 8, seed=s),) for s in (7, 8)], atol=0, rtol=0)


def test_external_data():
    pte, ptds, _ = split_package()
    check_agree(PackageFiles.of(pte, ptds), "forward", [(noise(1, 4),)])
    with pytest.raises(DeviceError, match=r"does not load: external data \(.ptd\) is missing"):
        Session(PackageFiles.of(pte), "interpreter").load("forward")
    with pytest.raises(DeviceError, match=r"does not open: corrupt external data \(.ptd\)"):
        Session(PackageFiles.of(pte, [pte]), "interpreter").load("forward")


def test_inputs_without_planned_memory():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.add_(1) * 2

    unplanned = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    manager = lowered({"run": exported(InPlace(), X)}, memory_planning_pass=unplanned)
    check_agree(PackageFiles("unplanned.pte", bytes(manager.buffer)), "run", [(X,), (X + 1,)])
    assert X.tolist() == [1, 2, 3]


X = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("method", "inputs", "words"),
    [
        (
            "encode",
            [torch.ones(11, 4)],
            r"input 0 is .* of sizes \[11, 4\], at most \[10, 4\]",
        ),
        ("encode", [torch.ones(4, 4).double()], "input 0 is a tensor of torch.float64, must be"),
        ("count", [torch.ones(2)], r"input 0 is a tensor of sizes \[2\], exactly \[3\] planned"),
        ("count", [1], "input 0 must be a tensor"),
        ("pass", [X, 3], "input 1 is 3, must be 2, as the method was exported"),
        ("pass", [X, X], "input 1 is a tensor, must be none"),
        (
            "embed",
            [torch.tensor([1, 2, 9]), torch.tensor(1.0)],
            r"instruction 0, aten::embedding.out \[.*\]: IndexError: index out of range",
        ),
    ],
)
def test_what_it_refuses(method, inputs, words):
    session = Session(PackageFiles.of(package_file()), "interpreter")
    with pytest.raises(DeviceError, match=f"all.pte: method '{method}' fails: {words}"):
        session.run(method, inputs)
    good = [torch.tensor([1, 2, 3]), torch.tensor(1.0)]
    assert session.run("embed", good)[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b.replace(b"aten::mul", b"aten::mux"), "missing operator aten::mux.out"),
        (lambda b: b[:300], "does not open: corrupt file"),
        (lambda b: b"no package" * 100, "does not open: corrupt file"),
        (
            lambda b: b.replace(b"XnnpackBackend", b"OtherBackend.."),
            "nothing here can run the delegate",
        ),
    ],
)
def test_damaged_packages(change, words):
    session = Session(PackageFiles("bad.pte", change(package_file().read_bytes())), "interpreter")
    with pytest.raises(DeviceError, match=f"^bad.pte: .*{words}"):
        for method in ("count", "encode"):
            session.load(method)


@pytest.mark.parametrize(
    ("name", "overload"),
    [
        ("aten::from_file", "out"),
        ("aten::save", ""),
        ("c10d::barrier", ""),
        ("load_library::__func__", "__call__"),
        ("aten::add", "overloads"),
        ("aten::add", "__class__"),
        ("aten", ""),
        ("team::none.such", "out"),
    ],
)
def test_a_package_calls_no_operator_that_an_archive_may_not(name, overload):
    with pytest.raises(RefusalError, match="missing operator"):
        load._find_operator(schema.Operator(name, overload))


def test_what_is_run_is_the_file():
    """Changing a constant in the bytes changes the result."""
    files, calls = case("images", False)
    before = Session(files, "interpreter").run("run", list(calls[0]))
    weight = CASES["images"][0].layers[0].weight.detach()
    content = files.contents().replace(
        weight.numpy().tobytes(), (weight * 2).contiguous().numpy().tobytes()
    )
    after = Session(PackageFiles("other.pte", content), "interpreter").run("run", list(calls[0]))
    assert (after[0] - before[0]).abs().max() > 0.1 and torch.equal(after[1], before[1])


def test_the_text_of_a_plan():
    text = Session(PackageFiles.of(case("branches", False)[0].pte), "interpreter").text("run")
    assert "to 5 unless" in text or "unless" in text
    assert "aten::mul.out" in text and "move" in text


# Python runtimes of delegates


class Demo(DelegateRuntime):
    """Adds, since the demo backend's partitions here do nothing else; their blob is text such as
    `1version:0#op:demo::aten.add.default, numel:4, dtype:torch.float32<debug_handle>1#`."""

    def __init__(self):
        self.alive = 0
        self.calls = []

    def init(self, processed_bytes, compile_specs, named_data):
        self.alive += 1
        text = processed_bytes.decode()
        if "#op:" not in text:
            raise DelegateError(f"not a program of the demo backend: {text[:9]!r}")
        operations = [part.split(",")[0].split(".")[1] for part in text.split("#op:")[1:]]
        return {"operations": operations, "specs": list(compile_specs), "timings": []}

    def execute(self, handle, inputs):
        self.calls.append([type(value).__name__ for value in inputs])
        if any(value.isnan().any() for value in inputs):
            raise DelegateError("not a number", debug_handle=7)
        first, second = inputs[0], inputs[-1]
        handle["timings"] = [Timing(name, 0.25, n) for n, name in enumerate(handle["operations"])]
        return [first + second]

    def timings(self, handle):
        return handle["timings"]

    def destroy(self, handle):
        self.alive -= 1


class MulAdd(nn.Module):
    def forward(self, x, y):
        return torch.relu(torch.mul(x, y) + x)


@pytest.fixture
def demo(monkeypatch):
    runtime = Demo()
    entry = dataclasses.replace(
        BACKENDS["xnnpack"],
        name="demo",
        backend_id="BackendWithCompilerDemo",
        execution=Execution(make_runtime=lambda: runtime),
    )
    known = {**BACKENDS, "demo": entry}
    monkeypatch.setattr(backends, "BACKENDS", known)
    monkeypatch.setattr(load, "BACKENDS", known)
    load._python_runtime.cache_clear()
    yield runtime
    load._python_runtime.cache_clear()


@cache
def demo_package():
    program = exported(MulAdd(), torch.ones(2, 2), torch.ones(2, 2))
    return bytes(lowered({"run": program}, {"run": [AddMulPartitionerDemo()]}).buffer)


def test_a_method_of_a_backend_with_a_python_runtime_runs_on_the_interpreter(demo):
    session = Session(PackageFiles("demo.pte", demo_package()))
    assert session.choose_device("run") == "interpreter"
    x, y = noise(2, 2), noise(2, 2, seed=1)
    (z,) = session.run("run", [x, y])
    torch.testing.assert_close(z, torch.relu(x * y + x))
    assert demo.calls == [["Tensor", "Tensor"]]
    timings = devices().get("interpreter").timings("run")
    assert timings and {timing.seconds for timing in timings} == {0.25}


def test_errors_of_a_delegate_keep_their_debug_handle(demo):
    session = Session(PackageFiles("demo.pte", demo_package()))
    with pytest.raises(DeviceError) as caught:
        session.run("run", [torch.full((2, 2), torch.nan), torch.ones(2, 2)])
    assert caught.value.debug_handle == 7
    assert "instruction 1, delegate 0 (BackendWithCompilerDemo)" in str(caught.value)
    assert str(caught.value).endswith(": not a number")
    content = demo_package().replace(b"#op:", b"#xx:")
    with pytest.raises(DeviceError, match="'run' does not load: not a program of the demo backend"):
        Session(PackageFiles("demo.pte", content)).load("run")


def test_a_delegate_that_gives_too_much_is_refused(demo, monkeypatch):
    monkeypatch.setattr(Demo, "execute", lambda self, handle, inputs: [*inputs, inputs[0]])
    session = Session(PackageFiles("demo.pte", demo_package()))
    with pytest.raises(DeviceError, match="returns 3 values, must return 1"):
        session.run("run", [torch.ones(2, 2), torch.ones(2, 2)])
    monkeypatch.setattr(Demo, "execute", lambda self, handle, inputs: [inputs[0].double()])
    with pytest.raises(DeviceError, match=r"a tensor of torch\.float64, must be"):
        session.run("run", [torch.ones(2, 2), torch.ones(2, 2)])


def test_handles_are_given_up_with_their_method(demo):
    session = Session(PackageFiles("demo.pte", demo_package()))
    session.load("run")
    assert demo.alive == 1
    del session
    assert demo.alive == 0


def test_validation_runs_such_a_method(demo):
    from tests.validate.test_package import method, validate

    program = exported(MulAdd(), torch.ones(2, 2), torch.ones(2, 2))
    pte = write("demo.pte", demo_package())
    validation = validate(pte, {"run": program})
    assert validation.failures == () and len(method(validation, "run").runs) == 3


@pytest.mark.parametrize(("backend_id", "others"), [("XnnpackBackend", 0), ("Other", 1)])
def test_a_delegate_of_xnnpack_gets_only_the_data_that_it_names(backend_id, others):
    named_data = {"its weight": b"ab" * 40, "another": b"cd" * 40}
    package = ExecutorchDelegate(backend_id, [], 0).pack(b"names its weight", [], named_data)
    assert [package.contents().count(data) for data in named_data.values()] == [1, others]
