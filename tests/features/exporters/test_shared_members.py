"""Weights that several programs share are stored once in the archive of an exporter."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export
from torch.export.pt2_archive._package import load_pt2

from pipeline.features.exporters import shared_members
from pipeline.features.exporters.shared_members import sharing_members
from pipeline.program.archive import load_program, save_programs
from pipeline.program.archive_facts import describe_archive
from pipeline.program.archive_reader import open_archive


class Twins(nn.Module):
    """Two linear layers with equal weights, a view of the first one, and `more` constants."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        nn.init.ones_(self.one.weight)
        nn.init.ones_(self.other.weight)
        self.part = self.one.weight.detach()[1:]
        self.more = [torch.full((2,), float(number)) for number in range(more)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.other(self.one(x)) @ self.part.T
        return x + sum(self.more)


def _programs() -> dict[str, ExportedProgram]:
    """Export three methods of one model; the second has private constants before shared ones."""
    torch.manual_seed(0)
    model = Twins(0).requires_grad_(False)
    methods = {}
    for name, constants in {"first": 0, "second": 2, "third": 3}.items():
        model.more = Twins(constants).more
        methods[name] = export(model, (torch.ones(1, 3),))
    return methods


def _members(path: Path) -> list[str]:
    with open_archive(path) as reader:
        return [name for name in reader.members.names() if "_config" not in name]


def test_equal_weights_of_programs_are_stored_once(tmp_path: Path) -> None:
    programs = _programs()
    save_programs(programs, str(tmp_path / "apart.pt2"))
    with sharing_members():
        save_programs(programs, str(tmp_path / "shared.pt2"))
    apart, shared = _members(tmp_path / "apart.pt2"), _members(tmp_path / "shared.pt2")
    assert len([name for name in apart if "/weight_" in name]) == 12
    # Equal storages of one program stay separate: `part` aliases one of them, but not the other.
    assert len([name for name in shared if "/weight_" in name]) == 4
    assert len([name for name in shared if "/tensor_" in name]) < len(
        [name for name in apart if "/tensor_" in name]
    )


def test_programs_are_the_same(tmp_path: Path) -> None:
    programs = _programs()
    apart, shared = tmp_path / "apart.pt2", tmp_path / "shared.pt2"
    save_programs(programs, str(apart))
    with sharing_members():
        save_programs(programs, str(shared))
    # Digests include which tensors of a program alias one another.
    assert describe_archive(apart).programs == describe_archive(shared).programs
    inputs = (torch.randn(1, 3),)
    by_torch = load_pt2(str(shared)).exported_programs
    for name, program in programs.items():
        expected = program.module()(*inputs)
        for loaded in (load_program(shared, name), by_torch[name]):
            torch.testing.assert_close(loaded.module()(*inputs), expected, rtol=0, atol=0)


def test_held_storages_make_the_same_archive(tmp_path: Path) -> None:
    programs = _programs()
    programs["copied"] = _programs()["first"]  # equal weights in other storages
    written = []
    for holds_storages in (False, True):
        file = io.BytesIO()
        with sharing_members(holds_storages):
            save_programs(programs, file)
        written.append(file.getvalue())
    assert written[0] == written[1]
    (tmp_path / "held.pt2").write_bytes(written[1])
    held = _members(tmp_path / "held.pt2")
    assert len([name for name in held if "/weight_" in name]) == 4


def test_a_shared_storage_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: object) -> None:
        raise AssertionError("hashed")

    first = _programs()["first"]
    programs = {"first": first, "second": first}
    monkeypatch.setattr(shared_members, "hash_bytes", refuse)
    with sharing_members(holds_storages=True):
        save_programs(programs, io.BytesIO())
    with pytest.raises(AssertionError, match="hashed"), sharing_members():
        save_programs(programs, io.BytesIO())


def test_tensors_without_bytes_share_a_member(tmp_path: Path) -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nothing = nn.Buffer(torch.empty(0, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, self.nothing])

    model = Empty()
    programs = {name: export(model, (torch.ones(1, 3),)) for name in ("first", "second")}
    with sharing_members(holds_storages=True):
        save_programs(programs, str(tmp_path / "empty.pt2"))
    for name in programs:
        loaded = load_program(tmp_path / "empty.pt2", name)
        assert loaded.module()(torch.ones(1, 3)).shape == (1, 3)
