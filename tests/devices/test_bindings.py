import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import executorch.kernels.quantized  # noqa: F401  its out variants, which lowering asks for
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import Dim, export

from pipeline.devices.bindings import Package
from pipeline.devices.interface import DeclaredTensor, DeviceError, PackageFiles
from pipeline.devices.runtime_log import runtime_log
from pipeline.devices.session import Session
from pipeline.program.pte import read_plans
from pipeline.store.errors import PipelineError
from tests.support.bench import REPOSITORY

CONSTANTS = {"get_length": 128, "get_rate": 0.5, "get_flags": [True, 3]}


class Encoder(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x)


class Counter(nn.Module):
    """State that starts at `initial`, and to which each input is added."""

    def __init__(self, initial=0.0):
        super().__init__()
        self.register_buffer("total", torch.full((3,), initial))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(7, 4)

    def forward(self, tokens, *, scale):
        return {"rows": self.table(tokens) * scale, "tokens": tokens}


class Passed(nn.Module):
    def forward(self, x, n: int):
        return x, x + n, None


def exported(module, *args, shapes=None, **kwargs):
    module = module.eval().requires_grad_(False)
    return export(module, args, kwargs or None, dynamic_shapes=shapes)


def programs():
    """Four methods: delegated with a dynamic batch, with state, with keywords, with constants."""
    batch = Dim("batch", min=2, max=10)
    return {
        "encode": exported(Encoder(), torch.ones(4, 4), shapes=({0: batch},)),
        "count": exported(Counter(), torch.ones(3)),
        "again": exported(Counter(), torch.ones(3)),
        "embed": exported(Table(), torch.tensor([1, 2, 6]), scale=torch.tensor(2.0)),
        "pass": exported(Passed(), torch.ones(3), 2),
    }


def lowered(methods, partitioner=None, constants=None, **config):
    """Return the ExecuTorch program; lowering consumes its input, so it gets a copy of the dict."""
    edge = to_edge_transform_and_lower(
        dict(methods), partitioner=partitioner, constant_methods=constants
    )
    return edge.to_executorch(ExecutorchBackendConfig(**config))


FOLDER = tempfile.TemporaryDirectory(prefix="packages-")


def write(name, data):
    path = Path(FOLDER.name, name)
    path.write_bytes(data)
    return path


@cache
def package_file():
    """One package with all methods and constants, made once for all tests."""
    partitioners = {"encode": [XnnpackPartitioner()]}
    return write("all.pte", lowered(programs(), partitioners, CONSTANTS).buffer)


@pytest.fixture
def package():
    return Package(PackageFiles.of(package_file()))


X = torch.tensor([1.0, 2.0, 3.0])


def test_methods_are_listed_sorted(package):
    assert package.methods() == sorted([*programs(), *CONSTANTS])


def test_a_method_runs(package):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    (y,) = package.run("encode", [x])
    torch.testing.assert_close(y, Encoder()(x).detach())


class Square(nn.Module):
    def forward(self, x):
        return (x.unsqueeze(0) + x.unsqueeze(1)).relu().sum()


def test_memory_that_is_not_to_be_had_is_told_with_its_size():
    """2 ** 23 numbers with one another, twice: more than a process can address."""
    sizes = ({0: Dim("n", min=2, max=1 << 23)},)
    large = lowered({"square": exported(Square(), torch.ones(4), shapes=sizes)})
    package = Package(PackageFiles("large.pte", large.buffer))
    told = r"large.pte: method 'square' does not load: this machine has too little memory for it "
    with pytest.raises(DeviceError, match=told + r"\(planned: [56]\d\d\.\d TB\)"):
        package.load("square")


def test_declared_inputs_and_outputs(package):
    declared = package.signature("encode")
    assert declared.inputs == (DeclaredTensor((10, 4), torch.float32),)
    assert declared.outputs == (DeclaredTensor((10, 3), torch.float32),)
    tokens, scale = package.signature("embed").inputs
    assert (tokens, scale) == (
        DeclaredTensor((3,), torch.int64),
        DeclaredTensor((), torch.float32),
    )
    assert package.signature("pass").inputs[1] is None
    assert package.signature("get_length").outputs == (None,)


def test_constants(package):
    assert {name: package.run(name, ()) for name in ("get_length", "get_rate")} == {
        "get_length": [128],
        "get_rate": [0.5],
    }
    flags = package.run("get_flags", ())
    assert flags == CONSTANTS["get_flags"] and type(flags[0]) is bool


def test_outputs_that_are_no_tensors(package):
    same, more, none = package.run("pass", [X, 2])
    assert torch.equal(same, X)
    assert torch.equal(more, X + 2)
    assert none is None


def test_state_lasts_as_long_as_the_package(package):
    assert [package.run("count", [X])[0][0].item() for _ in range(3)] == [2.0, 4.0, 6.0]
    assert Package(PackageFiles.of(package_file())).run("count", [X])[0][0].item() == 2.0
    assert package.run("count", [X])[0][0].item() == 8.0


def test_each_method_has_memory_of_its_own(package):
    package.run("count", [X])
    package.run("encode", [torch.full((10, 4), 9.0)])
    assert package.run("again", [X])[0][0].item() == 2.0
    assert package.run("count", [X])[0][0].item() == 4.0


def test_loading_runs_nothing_and_says_nothing(package, capfd):
    for _ in range(2):
        for name in package.methods():
            package.load(name)
    assert package.run("count", [X])[0][0].item() == 2.0
    assert capfd.readouterr().err == ""


def test_outputs_are_copies(package):
    (first,) = package.run("count", [X])
    kept = first.clone()
    package.run("count", [X])
    assert torch.equal(first, kept)


def test_inputs_are_taken_in_any_form_and_left_alone(package):
    x = torch.arange(16.0).reshape(4, 4)
    expected = package.run("encode", [x.t().contiguous()])[0]
    assert torch.equal(package.run("encode", [x.t()])[0], expected)
    parameter = nn.Parameter(x.t().contiguous())
    assert torch.equal(package.run("encode", [parameter])[0], expected)
    assert torch.equal(x, torch.arange(16.0).reshape(4, 4))


def test_too_few_inputs_are_refused_before_the_runtime_sees_them(package):
    with pytest.raises(DeviceError, match="'embed' takes 2 inputs, 1 given") as caught:
        package.run("embed", [torch.tensor([1, 2, 3])])
    assert caught.value.code == 0x12


@pytest.mark.parametrize(
    ("method", "inputs", "code", "words"),
    [
        ("encode", [torch.ones(11, 4)], 0x10, "wrong shape, or not supported (0x10); Attempted to"),
        ("encode", [torch.ones(4, 4).double()], 0x12, "expected Float but was Double"),
        ("pass", [X, 3], 0x12, "should have the same value as the input_evalue, but got 2 and 3"),
        ("embed", [torch.tensor([1, 2, 9]), torch.tensor(1.0)], 0x12, "indices_ptr[2] 9 >= weight"),
    ],
)
def test_errors_of_a_run_end_with_the_words_of_the_runtime(package, method, inputs, code, words):
    with pytest.raises(DeviceError) as caught:
        package.run(method, inputs)
    assert caught.value.code == code
    assert str(caught.value).startswith(f"all.pte: method '{method}' fails: ")
    assert words in caught.value.reason


def test_a_package_goes_on_after_an_error(package):
    scale = torch.tensor(1.0)
    with pytest.raises(DeviceError):
        package.run("embed", [torch.tensor([1, 2, 9]), scale])
    rows, _ = package.run("embed", [torch.tensor([1, 2, 3]), scale])
    assert torch.equal(rows, Table().table(torch.tensor([1, 2, 3])).detach())


def test_unknown_methods_are_named_with_those_there_are(package):
    for verb in (package.load, package.signature, lambda m: package.run(m, ())):
        with pytest.raises(PipelineError, match=r"has no method 'decode'; it has again, count, "):
            verb("decode")


def refused(name, change):
    """Return the error from loading `encode` or `count` after changing the package's bytes."""
    path = write(name, change(package_file().read_bytes()))
    with pytest.raises(DeviceError) as caught:
        package = Package(PackageFiles.of(path))
        package.load("encode")
        package.load("count")
    return caught.value


def test_a_missing_backend():
    error = refused("backend.pte", lambda b: b.replace(b"XnnpackBackend", b"OtherBackend.."))
    assert error.code == 0x20
    assert str(error).startswith("backend.pte: method 'encode' does not load: missing backend")
    assert "OtherBackend.. is not registered" in error.reason


def test_a_missing_operator():
    error = refused("operator.pte", lambda b: b.replace(b"aten::mul", b"aten::mux"))
    assert error.code == 0x14
    assert "'count' does not load: missing operator (0x14)" in str(error)
    assert "aten::mux" in error.reason


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda b: b[:200], 0x23, "corrupt file (0x23); File size is too small"),
        (lambda b: b"no package" * 100, 0x23, "corrupt file (0x23); Program identifier"),
        (lambda b: b"", 0x12, "offset 0 + size 64 > file_size_ 0"),
    ],
)
def test_corrupt_files(change, code, words):
    error = refused("corrupt.pte", change)
    assert error.code == code
    assert str(error).startswith("corrupt.pte: does not open: ")
    assert words in error.reason


def test_a_file_that_is_not_there():
    with pytest.raises(DeviceError, match=r"file cannot be read \(0x22\)"):
        Package(PackageFiles.of(Path(FOLDER.name, "none.pte")))


@cache
def split_package():
    """Return a package with constants in two `.ptd` files: two layers, portable kernels."""
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))

    def tag(node):
        return "first" if ".0." in str(node.target) or "_0_" in node.name else "second"

    torch.manual_seed(0)
    program = exported(network, torch.ones(1, 4))
    manager = lowered({"forward": program}, external_constants=tag)
    manager.write_tensor_data_to_file(FOLDER.name)
    ptds = sorted(Path(FOLDER.name).glob("*.ptd"))
    return write("split.pte", manager.buffer), ptds, program


def test_external_data():
    pte, ptds, program = split_package()
    assert [ptd.name for ptd in ptds] == ["first.ptd", "second.ptd"]
    x = torch.tensor([[1.0, -2.0, 3.0, -4.0]])
    package = Package(PackageFiles.of(pte, ptds))
    (y,) = package.run("forward", [x])
    torch.testing.assert_close(y, program.module()(x))
    in_memory = PackageFiles("split.pte", pte.read_bytes(), tuple(p.read_bytes() for p in ptds))
    assert torch.equal(Package(in_memory).run("forward", [x])[0], y)


def test_no_file_of_a_package_is_held_in_memory():
    pte, ptds, _ = split_package()
    assert not hasattr(Package(PackageFiles.of(pte, ptds)), "_bytes")


def test_missing_and_corrupt_external_data():
    pte, ptds, _ = split_package()
    with pytest.raises(DeviceError, match=r"does not load: invalid state, .*\(0x2\)"):
        Package(PackageFiles.of(pte)).load("forward")
    with pytest.raises(DeviceError, match=r"does not load: .*\(0x20\)"):
        Package(PackageFiles.of(pte, ptds[:1])).load("forward")
    with pytest.raises(DeviceError, match=r"corrupt external data \(.ptd\) \(0x24\)"):
        Package(PackageFiles.of(pte, [pte]))


def test_a_device_lays_inputs_out_as_the_method_reads_them():
    """Any layout gives the same result as the plain one, whichever of the two that kernels accept
    the export had."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 2, 3)
    x = torch.randn(1, 2, 4, 4)
    expected = convolution(x)
    views = [x, x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().mT]
    views += [torch.stack((x, x + 1), -1)[..., 0]]
    for number, like in enumerate(views[:2]):
        program = exported(convolution, like)
        path = write(f"laid{number}.pte", lowered({"forward": program}).buffer)
        session = Session(PackageFiles.of(path))
        for view in views:
            torch.testing.assert_close(session.run("forward", [view])[0], expected)


def test_the_layout_of_inputs_is_read_without_exir():
    from executorch.exir._serialize._program import deserialize_pte_binary

    data = package_file().read_bytes()
    plans = read_plans(data)
    for plan in deserialize_pte_binary(data).program.execution_plan:
        values = [plan.values[index].val for index in plan.inputs]
        wanted = [tuple(v.dim_order) if hasattr(v, "dim_order") else None for v in values]
        assert list(plans[plan.name].input_orders) == wanted
    assert read_plans(b"no package" * 100) == {}
    assert read_plans(data[:64]) == {}


def test_what_others_write_to_stderr_is_passed_on_and_what_says_nothing_is_not(capfd):
    log = []
    with runtime_log(log):
        print("a warning of another's", file=sys.stderr)
        print("[cpuinfo_utils.cpp:71] Reading file /sys/a/processor", file=sys.stderr)
        print("[method.cpp:85] Backend X is not registered.", file=sys.stderr)
    assert log == ["Backend X is not registered."]
    assert capfd.readouterr().err == "a warning of another's\n"


def in_a_process_of_its_own(code):
    """Return the exit status of code run without exir or the quantized operators loaded."""
    code = f"""
import sys
from pathlib import Path
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
opened = lambda path: Package(PackageFiles.of(Path(path)))
{code}
"""
    return subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60).returncode


def test_opening_a_package_does_not_import_exir():
    path = str(package_file())
    code = f"opened({path!r}).load('encode'); sys.exit('executorch.exir' in sys.modules)"
    assert in_a_process_of_its_own(code) == 0


def test_quantized_operators_are_there():
    quantized = torch.ops.quantized_decomposed

    class Rounded(nn.Module):
        def forward(self, x):
            limits = (0.5, 0, -128, 127, torch.int8)
            return quantized.dequantize_per_tensor(
                quantized.quantize_per_tensor(x, *limits), *limits
            )

    program = exported(Rounded(), torch.ones(3))
    path = str(write("rounded.pte", lowered({"forward": program}).buffer))
    code = f"opened({path!r}).load('forward')"
    assert in_a_process_of_its_own(code) == 0


def test_inputs_that_the_runtime_writes_to_are_copies():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.add_(1) * 2

    unplanned = MemoryPlanningPass(alloc_graph_input=False)
    program = exported(InPlace(), torch.ones(3))
    path = write(
        "in_place.pte", lowered({"forward": program}, memory_planning_pass=unplanned).buffer
    )
    x = torch.ones(3)
    changed, y = Package(PackageFiles.of(path)).run("forward", [x])
    assert (changed.tolist(), y.tolist()) == ([2, 2, 2], [4, 4, 4])
    assert x.tolist() == [1, 1, 1]
