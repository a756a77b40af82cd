"""Results of `torch.cond` that later control flow overwrites: found in the plan, named and fixed.

In each case, the finding is compared with what ExecuTorch's runtime does.
"""

import json
import shutil
from functools import cache

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch.export import export
from torch.utils import _pytree as pytree

from pipeline.compile.inspect.traced_facts import trace_operators
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.devices.package_data import read_package
from pipeline.features.lost_results.warnings import warn_of_lost_conds
from tests.support.located import ROOT, build
from tests.support.lowerable import bench_for
from tests.support.matrix import in_tiers

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) + 1


def first(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2.0, lambda x: x - 1.0, (x,))


def second(x):
    return torch.cond(x.sum() > 1, lambda x: x + 5.0, lambda x: x - 7.0, (x,))


class Used(nn.Module):
    def forward(self, x):
        return first(x) + second(x)


class Returned(nn.Module):
    def forward(self, x):
        return first(x), second(x)


class Several(nn.Module):
    """Only the second output is read after the other cond."""

    def forward(self, x):
        a, b = torch.cond(x.sum() > 0, lambda x: (x * 2, x * 3), lambda x: (x - 1, x - 2), (x,))
        a = a.sum()
        c, d = torch.cond(x.sum() > 1, lambda x: (x + 5, x + 6), lambda x: (x - 7, x - 8), (x,))
        return a, b + c + d


class InBranch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: first(x) + second(x), lambda x: x * 9.0, (x,))


class InMap(nn.Module):
    def forward(self, x):
        return torch_map(lambda row: first(row) + second(row), x)


class BeforeMap(nn.Module):
    def forward(self, x):
        return first(x) + torch_map(lambda row: row + 5.0, x)


class BeforeScan(nn.Module):
    def forward(self, x):
        return first(x) + scan(lambda c, row: (c + row, c * row), x[0].clone(), x)[1]


class ReadInLoop(nn.Module):
    """The body of the loop reads the result, and overwrites it for the next iteration."""

    def forward(self, x):
        a = first(x).sum()
        b = first(x)
        return torch_map(lambda row, b: (row * b.sum()) + b[0], x, b) + a


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


class Chain(Layers):
    """The second cond reads the first one's result and overwrites it at the same time."""

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: x - 1.0, (x,))
        return torch.cond(x.sum() > 1, lambda y: self.b(y), lambda y: y - 7.0, (y,))


class Viewed(nn.Module):
    """A single cond, whose result isn't where a view of it looks."""

    def forward(self, x):
        return first(x).view(-1) + 1


LOST = [Used, Returned, Several, InBranch, InMap, BeforeMap, BeforeScan, ReadInLoop, Chain, Viewed]


class Copied(nn.Module):
    def forward(self, x):
        return first(x).clone() + second(x)


class CopiedReturned(nn.Module):
    def forward(self, x):
        return first(x).clone(), second(x)


class CopiedSeveral(nn.Module):
    def forward(self, x):
        a, b = torch.cond(x.sum() > 0, lambda x: (x * 2, x * 3), lambda x: (x - 1, x - 2), (x,))
        a, b = a.clone(), b.clone()
        return a, b + second(x)


class CopiedInBranch(nn.Module):
    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda x: first(x).clone() + second(x), lambda x: x * 9.0, (x,)
        )


class CopiedBeforeScan(nn.Module):
    def forward(self, x):
        return first(x).clone() + scan(lambda c, row: (c + row, c * row), x[0].clone(), x)[1]


class CopiedViewed(nn.Module):
    def forward(self, x):
        return first(x).clone().view(-1) + 1


class ReadBefore(nn.Module):
    def forward(self, x):
        return (first(x) + 1) + second(x)


class ReadInBranches(nn.Module):
    """Each branch reads the result element by element and overwrites it for the other one."""

    def forward(self, x):
        y = first(x)
        return torch.cond(y.sum() > 10, lambda y: y + 1, lambda y: y - 1, (y,))


class AfterMap(nn.Module):
    def forward(self, x):
        return torch_map(lambda row: row + 5.0, x) + first(x)


COPIED = [Copied, CopiedReturned, CopiedSeveral, CopiedInBranch, CopiedBeforeScan, CopiedViewed]


class Where(nn.Module):
    """The remedy if there are partitioners."""

    def forward(self, x):
        return first(x) + torch.where(x.sum() > 1, x + 5.0, x - 7.0)


@cache
def built(module, delegated=False, strict=False):
    program = export(module().eval().requires_grad_(False), (X,), strict=strict)
    partitioners = {"run": [XnnpackPartitioner()]} if delegated else {}
    return build({"run": program}, partitioners)


def is_wrong(module, **options):
    """Return whether ExecuTorch's runtime gives another result than the source."""
    package = Package(PackageFiles("small.pte", built(module, **options).pte))
    for x in (X, X + 1, -X):
        expected = pytree.tree_leaves(module().eval()(x))
        for actual, value in zip(package.run("run", (x,)), expected, strict=True):
            if not torch.allclose(actual, value, atol=1e-5):
                return True
    return False


def warnings_of(module, **options):
    made = built(module, **options)
    plan = read_package(PackageFiles("small.pte", made.pte)).plans["run"]
    program = made.lowered["run"]
    found = warn_of_lost_conds(plan, made.emission.instructions("run", program), program)
    return trace_operators(found, program, ROOT)


@pytest.mark.parametrize("module", in_tiers(LOST, [Returned, Used, Viewed], [InBranch]))
def test_a_lost_result_is_warned_of_and_the_cond_is_the_culprit(module):
    assert is_wrong(module)  # a new ExecuTorch may fix it
    (warning,) = warnings_of(module)
    assert warning["operator"] == "cond"
    assert "`.clone()` it" in warning["what"]
    assert "tests/features/locating/test_lost_cond.py" in warning["line"]
    located = built(module).located("run", (X if module is not Chain else X + 1,))
    assert [(c["operator"], c["kind"]) for c in located.culprits] == [("cond", "operator")]
    (culprit,) = located.culprits
    assert culprit["what"].startswith(
        "first divergence: torch.cond, tests/features/locating/test_lost_cond.py:"
    )
    assert culprit["what"].endswith(warning["what"])


@pytest.mark.parametrize(
    "module",
    in_tiers(
        [*COPIED, ReadBefore, AfterMap, ReadInBranches],
        [Copied, AfterMap],
        [ReadBefore],
    ),
)
def test_a_copy_mends_it_and_nothing_is_said_of_what_is_right(module):
    assert not is_wrong(module)
    assert not warnings_of(module)


@pytest.mark.parametrize(
    "module", in_tiers([ReadBefore, Returned, Copied], [Returned], [ReadBefore])
)
def test_partitioners_move_what_reads_a_result_behind_the_next_cond(module):
    """A copy therefore doesn't fix it there, but torch.where does."""
    assert is_wrong(module, delegated=True)
    (warning,) = warnings_of(module, delegated=True)
    assert "in a method with partitioners" in warning["what"] and "torch.where" in warning["what"]


@pytest.mark.slow
def test_where_mends_it_with_partitioners():
    assert not is_wrong(Where, delegated=True)
    assert not warnings_of(Where, delegated=True)


@pytest.mark.slow
def test_the_line_is_that_of_the_cond_in_its_branch():
    """Strict export records that line in the program."""
    (warning,) = warnings_of(InBranch, strict=True)
    assert warning["line"].endswith(", in first")


MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        a = torch.cond(x.sum() > 0, lambda x: x * 2.0, lambda x: x - 1.0, (x,))
        b = torch.cond(x.sum() > 1, lambda x: x + 5.0, lambda x: x - 7.0, (x,))
        return a + b


def export_methods():
    return {"run": torch.export.export(Net(), (torch.ones(3, 4),))}
"""


@pytest.mark.slow
def test_a_person_is_told_when_it_is_lowered_and_when_it_fails(tmp_path):
    """This also holds if the compiled method comes from the store."""
    config = {"methods": {"run": {"partitioners": []}}}
    bench = bench_for(tmp_path / "workspace", {"two": config})
    (bench.root / "models" / "small.py").write_text(MODEL)
    warned = "two/run: warning: cond: its result is overwritten by the control flow"
    for _ in range(2):
        assert bench.doit("lower") == 0, bench.output
        assert warned in bench.output
        shutil.rmtree(bench.root / "build")
    assert bench.doit() == 1
    assert "run: first divergence: torch.cond, models/small.py:8: its result is" in bench.output
    facts = json.loads(bench.bytes_of("two", "manifest.json"))["methods"]["run"]
    assert [warning["operator"] for warning in facts["warnings"]] == ["cond"]
    report = bench.bytes_of("two", "report.md").decode()
    assert "models/small.py:8, in Net.forward" in report.split("### Warnings from lowering")[1]
