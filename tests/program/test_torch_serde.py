"""Programs that torch's archives lose or refuse, and that ExecuTorch's joint call lowers."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict, defaultdict
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch._export.serde import schema, serialize
from torch.export import Dim, export
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_

from pipeline.program.archive import load_program, save_programs
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet, load_inputs, save_inputs
from pipeline.program.torch_serde import patched_writer, read_document
from tests.support.packed import pack
from tests.support.signatures import make_method_spec

X = torch.arange(8.0).reshape(2, 4)
SHAPES = {0: Dim("rows", min=2, max=9)}


class Color(enum.Enum):
    RED = "r"


class Plain(torch.Tensor):
    pass


class Weight(nn.Parameter):
    pass


class NoGrad(nn.Module):
    """Subgraphs that return nothing: one is empty, one changes a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            y = x + 1
            with torch.enable_grad():
                y = y * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.count.add_(1)
        return y


class Scalars(nn.Module):
    def forward(self, x):
        return x + 1, x.shape[0] > 5, x.shape[0] / 2, x.shape[0] * 3


class Texts(nn.Module):
    def forward(self, d, prompt, nan):
        scaled = d["it's"] * len(prompt)
        return {'say "x"': scaled, "a\nb\\": torch.full((2,), math.nan)}


class Keys(nn.Module):
    def forward(self, d):
        made = {("a", (1, True)): d[Color.RED], 5: d[Color.RED] * 2}
        return defaultdict(Keys, {Color.RED: made, "n": d[Color.RED] * 3})


class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.by_name = nn.ParameterDict({"it's": torch.ones(4), "a\\c": torch.ones(4)})

    def forward(self, x):
        return x * self.by_name["it's"] + self.by_name["a\\c"]


class Subclasses(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Weight(torch.ones(4), requires_grad=False)
        self.register_buffer("offset", torch.ones(4).as_subclass(Plain))

    def forward(self, x):
        return x * self.weight + self.offset


def quantized():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32)).requires_grad_(False)
    quantize_(model, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4))
    return model


def programs():
    with torch.enable_grad():
        return {
            "no_grad": export(NoGrad(), (X,)),
            "scalars": export(Scalars(), (X,), dynamic_shapes=(SHAPES,)),
            "texts": export(Texts(), ({"it's": X}, "a 'b' \"c\" \\\n", math.nan)),
            "keys": export(Keys(), (OrderedDict({Color.RED: X}),)),
            "names": export(Names().requires_grad_(False), (X,)),
            "subclasses": export(Subclasses(), (X,)),
            "quantized": export(quantized(), (torch.ones(2, 32),)),
        }


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "all.pt2"
    with open(path, "wb") as file:
        save_programs(programs(), file)
    return lambda name: load_program(path, name)


def check_bytes(names, partitioner, loaded, folder):
    own = {name: program for name, program in programs().items() if name in names}
    partitioners = {name: [each() for each in partitioner] for name in own}
    joint = to_edge_transform_and_lower(own, partitioner=partitioners).to_executorch().buffer
    packed = pack(folder, {name: loaded(name) for name in own}, partitioners)
    assert packed.files["model.pte"].read_bytes() == joint


@pytest.mark.slow
def test_they_are_lowered_to_the_bytes_of_the_joint_call(loaded, tmp_path):
    names = {"no_grad", "scalars", "texts", "keys", "names", "subclasses"}
    check_bytes(names, [], loaded, tmp_path)


@pytest.mark.slow
def test_weights_of_torchao_are_lowered_to_the_bytes_of_the_joint_call(loaded, tmp_path):
    check_bytes({"quantized"}, [XnnpackPartitioner], loaded, tmp_path)


def test_weights_of_torchao_are_read_from_an_archive_that_torch_wrote(loaded, tmp_path):
    """torch pickles them, but their class is one that it unpickles without running code."""
    torch.export.save(programs()["quantized"], tmp_path / "q.pt2")
    for program in (load_program(tmp_path / "q.pt2", "model"), loaded("quantized")):
        assert {type(each) for each in program.state_dict.values()} <= {torch.Tensor, nn.Parameter}
        (actual,) = Source(program).run(InputSet((torch.ones(2, 32),)))
        torch.testing.assert_close(actual, quantized()(torch.ones(2, 32)))


@pytest.mark.parametrize(
    ("method", "outputs"),
    [
        ("texts", {'say "x"', "a\nb\\"}),
        ("keys", {"Color.RED", "n"}),
    ],
)
def test_signatures_have_plain_keys(loaded, method, outputs):
    spec = make_method_spec(loaded(method))
    assert spec.outputs.keys() == outputs
    if method == "keys":
        assert spec.outputs["Color.RED"].keys() == {("a", (1, True)), 5}
    else:  # the export fixed it to NaN, which equals nothing
        assert spec.flat_arguments(({"it's": X}, "a 'b' \"c\" \\\n", math.nan), {})


def test_scalar_outputs_are_in_the_signature(loaded):
    spec = make_method_spec(loaded("scalars"))
    kinds = [type(each.value).__name__ for each in spec.outputs]
    assert kinds == ["TensorSpec", "str", "str", "Extent"]
    run = Source(loaded("scalars")).run(InputSet((torch.ones(6, 4),)))
    assert run[1:] == [True, 3.0, 18]


def test_keys_that_are_no_texts_are_kept_in_input_sets():
    given = InputSet(({("a", 1): X, 5: X, None: X},))
    (back,) = load_inputs(save_inputs([given]))
    assert list(back.args[0]) == [("a", 1), 5, None]


class ShiftedWindows(nn.Module):
    """What remains of padded windows of 8 after the first: `2*n + Mod(...) - 8` of `16*n`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = x[:, ::8]
        return nn.functional.pad(small, (0, (8 - small.shape[1] % 8) % 8))[:, 8:] + 1


def test_other_sizes_of_a_derived_dimension_are_read(tmp_path: Path) -> None:
    sizes = {"x": {1: 16 * Dim("n", min=3, max=16)}}
    program = export(ShiftedWindows(), (torch.randn(1, 224),), dynamic_shapes=sizes)
    path = tmp_path / "windows.pt2"
    with path.open("wb") as file:
        save_programs({"forward": program}, file)
    read = load_program(path, "forward").module()
    for n in (6, 9):
        x = torch.randn(1, 16 * n)
        assert torch.equal(read(x), ShiftedWindows()(x))


@pytest.mark.parametrize("name", ["NoGrad", "Scalars"])
def test_records_of_a_program_are_those_that_torch_reads(name):
    program = export(globals()[name](), (X,), dynamic_shapes=(SHAPES,), strict=False)
    with patched_writer():
        written = serialize.ExportedProgramSerializer().serialize(program).exported_program
    document = json.loads(json.dumps(serialize._dataclass_to_dict(written)))
    kinds = serialize.typing
    assert read_document(document) == serialize._dict_to_dataclass(schema.ExportedProgram, document)
    assert serialize.typing is kinds
