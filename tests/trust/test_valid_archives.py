"""Archives of every kind that torch writes without pickle are read as torch reads them."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.export.pt2_archive._package import load_pt2

from pipeline.program.archive import load_program, save_programs
from pipeline.program.archive_facts import describe_archive

Pair = namedtuple("Pair", "first second")
torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="tests.Pair")
X = torch.arange(12.0).reshape(4, 3)
BASE = torch.arange(100.0).reshape(10, 10)
DTYPES = ["bool", "uint8", "int16", "uint64", "float16", "bfloat16", "complex64", "float8_e4m3fn"]


class Calls(nn.Module):
    """Calls a function with the module as an argument; tensors passed to it become buffers."""

    def __init__(self, function, **members):
        super().__init__()
        self.function = function
        for name, value in members.items():
            plain = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
            self.register_buffer(name, value) if plain else self.add_module(name, value)

    def forward(self, *arguments):
        return self.function(self, *arguments)


def _sizes(self, x):
    rows, found = x.shape[0], x.nonzero()[:, 0]
    return torch.zeros((rows + 7) // 8 * 8, -(-rows // 3)), torch.cat([found, found + 1])


def _branches(self, x):
    y = torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.cos(), (x,))
    with torch.no_grad():
        return torch._higher_order_ops.while_loop(lambda a: a.sum() < 9, lambda a: (a + 1,), (y,))


def _named(self, x, größe):
    return Pair({"a b": self.layers["a b"](x), 3: größe.view(4, 3)}, [None, (self.layers["é"](x),)])


LAYERS = nn.ModuleDict({"a b": nn.Linear(3, 3), "é": nn.Linear(3, 3)})
VIEWS = {"a": BASE[2:5], "b": BASE[:, 3], "c": BASE.t(), "d": BASE[:1].expand(5, 10)}
EMPTY = {"e": torch.empty(0, 3), "f": torch.tensor(3.0)}
PROGRAMS = {
    "sizes": lambda: export(Calls(_sizes), (X,), dynamic_shapes=(({0: Dim.AUTO},),)),
    "branches": lambda: export(Calls(_branches, linear=nn.Linear(3, 3)), (X,)),
    "names": lambda: export(Calls(_named, layers=LAYERS), (X, X.flatten())),
    "views": lambda: export(Calls(lambda m, x: x + m.a.sum() + m.b[0] + m.c[0, 0], **VIEWS), (X,)),
    "empty": lambda: export(Calls(lambda m, x: (x + m.f, m.e * 2), **EMPTY), (X,)),
    "state": lambda: export(nn.BatchNorm1d(3), (X,), strict=True).run_decompositions(),
    "inputs": lambda: export(Calls(lambda m, x, *others: x + 1), (X, None, True, "a b", -0.0, 3)),
}
for dtype in DTYPES:
    buffer = torch.ones(2, 3).to(getattr(torch, dtype))
    PROGRAMS[dtype] = lambda b=buffer: export(Calls(lambda m, x: (x, m.b.clone()), b=b), (X,))


def _bytes(tensor):
    tensor = tensor.detach().contiguous().flatten()
    return tensor.view(torch.uint8).tolist() if tensor.numel() else []


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_archive_is_read_as_torch_reads_it(name, tmp_path):
    path = tmp_path / "x.pt2"
    with open(path, "wb") as file:
        save_programs({"m": PROGRAMS[name]()}, file)
    ours, theirs = load_program(path, "m"), load_pt2(str(path)).exported_programs["m"]
    assert [each.entry for each in describe_archive(path).programs] == ["m"]
    for part in ("graph_signature", "range_constraints", "call_spec"):
        assert str(getattr(ours, part)) == str(getattr(theirs, part))
    assert ours.graph_module.code == theirs.graph_module.code
    for mine, other in ((ours.state_dict, theirs.state_dict), (ours.constants, theirs.constants)):
        assert list(mine) == list(other)
        for key, value in mine.items():
            assert (value.dtype, value.shape, value.stride()) == (
                *(other[key].dtype, other[key].shape, other[key].stride()),
            )
            assert _bytes(value) == _bytes(other[key])
