"""torch's tracer and torchao are imported when something uses them, and then work as ever."""

import subprocess
import sys

import pytest
import torch
from torch.export import Dim, export

from pipeline.program.archive import save_programs
from tests.support.matrix import in_tiers

IMPORT = """
import os
import sys

from pipeline.features.speedups.executorch_import import import_executorch

import_executorch(lambda: None)

import torch

QUANTIZERS = "torchao.quantization.quant_api"
TRACER = "torch._dynamo.symbolic_convert"
PARTITIONERS = "torch._functorch.partitioners"
EXPORTER = "torch.export._trace"
RULES = "torch.distributed.tensor._ops"
COMPILER = "torch._inductor.codecache"


def is_loaded(name):
    return type(sys.modules.get(name)) is type(sys)
"""
LOWERS = """
from pathlib import Path

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.program.archive import load_program

program = load_program(Path(sys.argv[1]), "forward")
assert program.module(check_guards=False)(torch.ones(3, 4)).shape == (3, 4)
assert not is_loaded(EXPORTER)
from pipeline.features.speedups.patches import fast_lowering

with fast_lowering():
    assert emit(lower({"forward": program}, {"forward": [XnnpackPartitioner()]}, store=None)).buffer
assert torch.utils._traceback.CapturedTraceback.extract().summary()[-1].name == "<module>"
assert not any(map(is_loaded, (TRACER, QUANTIZERS, PARTITIONERS, RULES, COMPILER)))
assert "torch.distributed.tensor" in sys.modules
from torch.distributed.device_mesh import DeviceMesh

try:
    DeviceMesh("no such device", [0])
except Exception:
    assert is_loaded(RULES)
from torch.distributed.tensor import DTensor

assert torch.ops.aten.view.default in DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
"""
BRANCHES = """
from pathlib import Path

from pipeline.compile.lower import lower
from pipeline.features.speedups.patches import fast_lowering
from pipeline.program.archive import load_program

program = load_program(Path(sys.argv[1]), "forward")
assert not is_loaded(COMPILER)
with fast_lowering():
    lower({"forward": program}, {"forward": []}, store=None)
"""
IMPORTS = """
import importlib

assert not is_loaded(TRACER)
module = importlib.import_module(sys.argv[1])
assert sys.modules[module.__name__] is module
assert module.__spec__.origin == module.__file__
"""
TRACES = """
traced = []


def show(module, inputs):
    traced.extend(node.target for node in module.graph.nodes if node.op == "call_function")
    return module.forward


@torch._disable_dynamo
def hidden(x):
    return x.cos()


assert hidden(torch.zeros(1)) == 1  # before the tracer is loaded
assert torch.compile(lambda x: hidden(x) + x.sin(), backend=show)(torch.zeros(1)) == 1
weight = torch.ones(1, requires_grad=True)
torch.compile(lambda x: (x * weight).exp().sum(), backend="aot_eager")(torch.zeros(1)).backward()
assert weight.grad == 0
assert is_loaded(TRACER) and not {"cos", torch.cos} & set(traced) and traced
assert is_loaded(PARTITIONERS) and is_loaded(COMPILER)
from torch._dynamo.guards import Guard, uninteresting_files
from torch._dynamo.variables.builder import TrackedFake

assert isinstance(Guard, type) and uninteresting_files() and isinstance(TrackedFake, type)
assert torch.ops.streams.record_event.default is not None
"""
QUANTIZES = """
from torchao.quantization import Int8WeightOnlyConfig, quantize_

model = torch.nn.Sequential(torch.nn.Linear(64, 64))
quantize_(model, Int8WeightOnlyConfig())
assert is_loaded(QUANTIZERS) and model(torch.ones(1, 64)).shape == (1, 64)
from torch._inductor.decomposition import decompositions

assert torch.ops.torchao.quantize_affine.default in decompositions
"""
FORKS = """
child = os.fork()
if child == 0:
    os._exit(0 if is_loaded(TRACER) and is_loaded(QUANTIZERS) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
UNPICKLES = """
from pathlib import Path

from pipeline.program.tensor_file import load_tensor_file

with Path(sys.argv[1]).open("rb") as file:
    weight = load_tensor_file(file)
assert type(weight).__module__.startswith("torchao."), type(weight)
"""
SAVES = """
import sys

import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

model = torch.nn.Sequential(torch.nn.Linear(64, 64))
quantize_(model, Int8WeightOnlyConfig())
torch.save(model[0].weight, sys.argv[1])
"""
NAMES = "\nprint(*sorted(name for name in sys.modules if name.startswith(('torch', 'executorch'))))"
EAGER = "import torch._dynamo\nimport torchao\n"
LOADED = "from pipeline.features.speedups.late_modules import load_all\n\nload_all()" + NAMES


def run(*texts, arguments=()):
    command = [sys.executable, "-c", "\n".join(texts), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_program_is_lowered_without_tracer_and_quantizers(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    shapes = ({0: Dim("n", min=2, max=8)},)
    program = export(model, (torch.ones(2, 4),), dynamic_shapes=shapes)
    archive = tmp_path / "model.pt2"
    save_programs({"forward": program}, archive)
    run(IMPORT, LOWERS, arguments=[str(archive)])


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


class Loop(torch.nn.Module):
    def forward(self, x):
        def is_small(x):
            return x.sum() < 9

        return torch._higher_order_ops.while_loop(is_small, lambda x: (x + 1,), (x,))


class Map(torch.nn.Module):
    def forward(self, x):
        return torch._higher_order_ops.map(torch.sin, x)


class Scan(torch.nn.Module):
    def forward(self, x):
        def add(total, x):
            return total + x, total + x

        return torch._higher_order_ops.scan(add, torch.zeros(4), x)[1]


@pytest.mark.parametrize(
    "model", in_tiers([Branches, Loop, Map, Scan], slow=[Loop], quick=[Branches])
)
def test_the_first_program_of_a_process_contains_graphs(model, tmp_path):
    """What torch imports for such a program imports the compiler's modules in some other order."""
    archive = tmp_path / "model.pt2"
    save_programs({"forward": export(model(), (torch.ones(2, 4),))}, archive)
    run(IMPORT, BRANCHES, arguments=[str(archive)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ir", "codegen.cpp_template", "config_comms", "decomposition"])
def test_any_module_of_the_compiler_may_be_the_first(name):
    run(IMPORT, IMPORTS, arguments=[f"torch._inductor.{name}"])


@pytest.mark.slow
@pytest.mark.parametrize("text", [TRACES, QUANTIZES, FORKS], ids=["traces", "quantizes", "forks"])
def test_what_is_imported_late_works(text):
    run(IMPORT, text)


@pytest.mark.slow
def test_quantized_tensors_are_unpickled(tmp_path):
    file = str(tmp_path / "weight.pt")
    run(SAVES, arguments=[file])
    run(IMPORT, UNPICKLES, arguments=[file])


@pytest.mark.slow
def test_all_modules_are_there_once_they_are_loaded():
    assert {*run(EAGER, IMPORT, NAMES)} <= {*run(IMPORT, LOADED)}
