"""Dynamic sizes that lowering narrows are reported with the operator, and kept on request."""

from __future__ import annotations

import json
import textwrap
from functools import cache
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import nn
from torch.export import Dim, export

from pipeline.compile.emit import emit
from pipeline.compile.inspect.traced_facts import trace_operators
from pipeline.compile.lower import lower
from pipeline.compile.ranges import kernel_guards
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.features.ranges.recorder import InputSizes, record_ranges
from pipeline.program.graphs import NodePlaces
from pipeline.store.store import Store
from tests.support.bench import REPOSITORY, Bench
from tests.support.joint import joint_call
from tests.support.lowerable import plan_of


class Wave(nn.Module):
    """Two convolutions with an operator between them that stays outside XNNPACK."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv1d(8, 8, 3, padding=1)
        self.second = nn.Conv1d(8, 4, 3, padding=1)

    def forward(self, x):
        return self.second(torch.cumsum(self.first(x), -1))


def wave():
    module, sizes = Wave().eval().requires_grad_(False), {2: Dim("time", min=10, max=4000)}
    return export(module, (torch.randn(1, 8, 100),), dynamic_shapes=(sizes,))


def lowered(keep: bool, store: Store | None = None):
    """Lower and emit without a build; return the bytes and the narrowed sizes."""
    program = wave()
    places = NodePlaces(program)
    with kernel_guards(keep), record_ranges({"run": program}) as find_narrowed:
        edge = lower({"run": program}, {"run": [XnnpackPartitioner()]}, store=store)
        sizes = InputSizes(edge.exported_program("run"))
        pte = bytes(emit(edge).buffer)
        narrowed = find_narrowed("run", sizes, places)
    return pte, narrowed, program


alone = cache(lowered)  # without a store


def takes(pte: bytes) -> int:
    """Return the maximum number of steps that a package accepts."""
    (declared,) = Package(PackageFiles("wave.pte", pte)).signature("run").inputs
    return declared.sizes[2]


def test_a_size_that_lowering_narrows_is_told_with_the_operator():
    pte, (narrowed,), program = alone(keep=False)
    assert takes(pte) == narrowed["lowered"][1] == 2560  # 8 channels each: 20,480 elements
    assert (narrowed["size"], narrowed["source"], narrowed["lowered"]) == (
        "x.shape[2]",
        (10, 4000),
        (10, 2560),
    )
    (traced,) = trace_operators([narrowed], program, REPOSITORY)
    assert (traced["operator"], traced["module"]) == ("aten.conv1d.default", "first")
    line, _, place = traced["line"].partition("  # ")
    assert line == "return self.second(torch.cumsum(self.first(x), -1))"
    assert place.startswith("tests/features/ranges/test_ranges.py:")


@pytest.mark.slow
def test_a_range_is_kept_where_that_is_asked():
    pte, narrowed, _ = alone(keep=True)
    assert narrowed == [] and takes(pte) == 4000
    assert torch.backends.mkldnn.enabled


@pytest.mark.slow
def test_what_narrows_is_made_again_so_that_a_store_changes_no_byte(tmp_path: Path):
    store = Store(tmp_path / "store")
    for keep in (False, True, False, True):
        pte, narrowed, _ = lowered(keep, store)
        assert pte == alone(keep=keep)[0]
        assert narrowed == alone(keep=keep)[1]


MODEL = """
import torch
from torch import nn
from torch.export import Dim, export


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.first(x))


def export_methods():
    module, sizes = Wave().eval().requires_grad_(False), {2: Dim("time", min=10, max=4000)}
    return {"run": export(module, (torch.randn(1, 8, 100),), dynamic_shapes=(sizes,))}
"""


@pytest.mark.slow
def test_it_is_told_by_the_terminal_the_manifest_and_the_report(tmp_path: Path):
    bench = Bench(tmp_path)
    for folder in ("models", "partition_configs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dodo.py").write_text("from pipeline.tasks import *\n")
    (tmp_path / "models" / "wave.py").write_text(MODEL)
    for package, edge in (("plain", "{}"), ("kept", "{keep_ranges: true}")):
        (tmp_path / "partition_configs" / f"{package}.yaml").write_text(
            textwrap.dedent(f"""
            model: wave
            methods: {{run: {{partitioners: [xnnpack], edge: {edge}}}}}
            validate: {{latency: {{seconds: 0}}, inputs: 1}}
            """)
        )
    assert bench.doit("-c", "lower") == 0, bench.output
    (line,) = [line for line in bench.output.splitlines() if "x.shape[2]" in line]
    assert line == (
        "plain/run: x.shape[2] is lowered for 10 to 2,560, but its source accepts 10 to 4,000; "
        "narrowed by aten.conv1d.default in first; "
        "`edge: {keep_ranges: true}` may keep them [PTE376]"
    )
    methods = {
        p: json.loads(bench.bytes_of(p, "manifest.json"))["methods"]["run"]
        for p in ("plain", "kept")
    }
    (told,) = methods["plain"]["narrowed"]
    assert (told["size"], told["source"], told["lowered"]) == ("x.shape[2]", [10, 4000], [10, 2560])
    assert "narrowed" not in methods["kept"]
    for package in ("plain", "kept"):
        assert joint_call(plan_of(bench), package).buffer == bench.bytes_of(
            package, f"{package}.pte"
        )
    assert bench.doit("-c", "validate") == 1
    assert json.loads(bench.bytes_of("kept", "report.json"))["ok"], bench.output
    assert (
        "validate:plain failed: interface: run: input 'x': declares room for size 2560"
        in bench.output
    )
    report = bench.bytes_of("plain", "report.md").decode()
    row = report.split("### Sizes that are lowered for a smaller range than the source accepts")[1]
    cells = "`x.shape[2]` | 10 to 2,560 | 10 to 4,000 | `aten.conv1d.default` (in first) |"
    assert cells in row and "models/wave.py:14" in row
