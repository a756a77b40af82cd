"""Sizes found equal by an export: archived programs lower to the same bytes as those in memory."""

import json

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch.export import Dim, export, save
from torch.export.pt2_archive._package import package_pt2

from pipeline.program.archive import load_program, save_programs
from pipeline.program.archive_facts import describe_archive
from pipeline.program.archive_reader import sizes_file
from pipeline.program.replaced_sizes import read_replaced_sizes
from pipeline.store.errors import SourceError

ENTRY = "m"


class Positions(torch.nn.Module):
    """Adds positions to tokens, of which there are as many as values in a mask."""

    def __init__(self, of_mask):
        super().__init__()
        torch.manual_seed(0)
        self.of_mask = of_mask
        self.embedding = torch.nn.Embedding(50, 8)

    def forward(self, tokens, mask):
        hidden = self.embedding(tokens)
        length = mask.shape[1] if self.of_mask else hidden.shape[1]
        positions = torch.arange(length)
        return hidden + positions[None, :, None].float() + positions.sum()


def make_program(of_mask=False):
    length = Dim("length", min=2, max=16)
    inputs = torch.randint(0, 50, (1, 5)), torch.ones(1, 5)
    model = Positions(of_mask).eval().requires_grad_(False)
    return export(model, inputs, dynamic_shapes=({1: length}, {1: length}), strict=False)


@pytest.fixture(scope="module")
def program():
    return make_program()


def lower(program):
    return to_edge_transform_and_lower({ENTRY: program}).to_executorch().buffer


@pytest.mark.parametrize("of_mask", [False, True])
def test_a_program_from_an_archive_is_lowered_to_the_same_bytes(tmp_path, of_mask):
    program = make_program(of_mask)
    for name in ("first.pt2", "again.pt2"):
        path = tmp_path / name
        save_programs({ENTRY: program}, path)
        loaded = load_program(path, ENTRY)
        assert read_replaced_sizes(loaded) == read_replaced_sizes(program) != {}
        program = loaded
    assert lower(loaded) == lower(make_program(of_mask))


def test_replaced_sizes_count(tmp_path, program):
    """Archives written by torch don't have them, and may lead to other bytes."""
    save_programs({ENTRY: program}, tmp_path / "ours.pt2")
    save(program, tmp_path / "theirs.pt2")
    digests = set()
    for path in tmp_path.glob("*.pt2"):
        [facts] = describe_archive(path).programs
        digests.add(facts.program)
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (["mask"], "must be a mapping"),
        ({"mask": {"-1": {"s1": "s2"}}}, "must be the position of a size"),
        ({"mask": {"1": {"s1": "import os"}}}, "must be the symbol of a size"),
        ({"mask": {"1": {"s1": 3}}}, "must be the symbol of a size"),
        ({"other": {"1": {"s1": "s2"}}}, "replaces sizes of 'other', which is not an input"),
        ({"mask": {"0": {"s1": "s2"}}}, "replaces size 0 of 'mask', which is not a symbol"),
        ({"mask": {"9": {"s1": "s2"}}}, "replaces size 9 of 'mask', which is not a symbol"),
        ({"mask": {"1": {"s1": "s2"}}}, "replaces 's1', which is not part of the size"),
        ({"mask": {"1": {"SIZE": "SIZE"}}}, "replaces 'SIZE', which the program has"),
    ],
)
def test_forged_sizes_are_refused(tmp_path, program, sizes, message):
    [tensor] = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"][-1:]
    symbol = str(tensor.shape[1])
    extra = {sizes_file(ENTRY): json.dumps(sizes).replace("SIZE", symbol)}
    package_pt2(str(tmp_path / "x.pt2"), exported_programs={ENTRY: program}, extra_files=extra)
    with pytest.raises(SourceError, match=message.replace("SIZE", symbol)):
        load_program(tmp_path / "x.pt2", ENTRY)
