"""How the work of a build grows with its size, in calls of Python functions instead of seconds.

Call counts repeat exactly. Each dimension is doubled three times. A function is reported if its
calls grow faster than the size, with the power of its growth. Work done in C, such as the union of
two sets, isn't counted.
"""

from __future__ import annotations

import copy
import cProfile
import math
import pstats
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from benchmarks.linking import link
from benchmarks.measure import Result
from benchmarks.models import Affine, AverageAttention, exported
from benchmarks.workspaces import Sizes, finished_checkout, plan_of
from pipeline.backends import PartitionerSpec, make_partitioners
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.objects import make_object
from pipeline.config.validation import ValidateConfig
from pipeline.features.explain.plan import run as print_plan
from pipeline.features.speedups.patches import fast_lowering
from pipeline.features.xnnpack.entries import XnnpackOptions
from pipeline.program.inputs import InputSet
from pipeline.store.file_digests import RACY_NS
from pipeline.store.store import Store
from pipeline.validate.package import validate_package

LIMIT = 1.1
# A function counts only if it accounts for at least this share of all calls.
SHARE = 0.002
DOUBLINGS = 3
# Resizing a weak dictionary, or collecting garbage from it, hashes its keys again. When that
# happens depends on what else the process holds.
_OF_THE_PROCESS = ("torch.utils.weak:", "weakref:")
Work = Callable[[], object]

# Functions that grow faster, but can't be fixed here.
_SORTING = "paths are sorted, with comparisons in proportion to n log n"
KNOWN = {
    "pathlib:_cparts": _SORTING,
    "pathlib:__lt__": _SORTING,
}


class Constants(nn.Module):
    """A sum of `count` constants. x: float32 [4] -> the same."""

    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.constants = nn.ParameterList(torch.randn(4) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for constant in self.constants:
            x = x + constant
        return x


class Chain(nn.Module):
    """A chain of `count` operators. x: float32 [4] -> the same."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = x.sin()
        return x


def compile_constants(count: int, folder: Path) -> Work:
    return _compile(exported(Constants(count), 4), delegated=False)


def compile_nodes(count: int, folder: Path) -> Work:
    return _compile(exported(Chain(count), 4), delegated=False)


def compile_delegated(count: int, folder: Path) -> Work:
    """Compile many operators that become one partition."""
    return _compile(exported(Chain(count), 4), delegated=True)


def compile_partitions(count: int, folder: Path) -> Work:
    return _compile(exported(AverageAttention(count)), delegated=True)


def _compile(program: ExportedProgram, delegated: bool) -> Work:
    partitioners = []
    if delegated:
        partitioners = make_partitioners(
            [PartitionerSpec(name="xnnpack", options=XnnpackOptions())]
        )

    def work() -> None:
        with fast_lowering():
            emit(lower({"forward": program}, {"forward": partitioners}))

    return work


def link_methods(count: int, folder: Path) -> Work:
    """Link one package of `count` methods, whose objects exist already."""
    store = Store(folder / "store")
    objects = []
    for number in range(count):
        program = exported(Affine(number), 1, 8)
        objects.append(make_object(emit(lower({f"method{number}": program}, {})), store))
    return lambda: link(objects, store)


def validate_examples(count: int, folder: Path) -> Work:
    """Validate one method on `count` inputs."""
    program = exported(Affine(1), 1, 8)
    folder.mkdir(exist_ok=True)
    package = folder / "affine.pte"
    package.write_bytes(emit(lower({"forward": copy.deepcopy(program)}, {})).buffer)
    examples = [InputSet((torch.randn(1, 8),), origin=f"example {n}") for n in range(count)]
    settings = ValidateConfig(atol=1e-4, inputs=1, cases=())
    return lambda: validate_package(
        package, (), {"forward": program}, {"forward": examples}, settings, {}
    )


def plan_packages(count: int, folder: Path) -> Work:
    """Plan `count` packages for which nothing is to do, and print the plan."""
    folder.mkdir(exist_ok=True)
    checkout = finished_checkout(folder / "workspace", count, 2)

    def work() -> None:
        plan = plan_of(checkout)
        for package in plan.packages:
            assert plan.link(package) and plan.validate(package)
        assert list(print_plan(plan, ()))
        plan.remember()

    # Every plan reads files again that have just been written.
    time.sleep(RACY_NS / 1e9)
    work()
    return work


class Dimension(NamedTuple):
    """The quantity that is doubled.

    Attributes:
        prepare: returns the work for a size; only this work is counted.
        sizes: the first size in CI, and in the full run.
    """

    prepare: Callable[[int, Path], Work]
    sizes: tuple[int, int]


DIMENSIONS: Mapping[str, Dimension] = {
    "constants": Dimension(compile_constants, (4, 50)),
    "nodes": Dimension(compile_nodes, (4, 100)),
    "nodes of a partition": Dimension(compile_delegated, (4, 50)),
    "partitions": Dimension(compile_partitions, (1, 8)),
    "methods": Dimension(link_methods, (1, 8)),
    "examples": Dimension(validate_examples, (3, 25)),
    "packages": Dimension(plan_packages, (3, 25)),
}


def count_calls(work: Work) -> Counter[str]:
    """Return how often each Python function is called, keyed by module and name."""
    profile = cProfile.Profile(builtins=False)
    profile.runcall(work)
    calls: Counter[str] = Counter()
    for (file, _, name), (_, count, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        function = f"{_name_module(file)}:{name}"
        if not function.startswith(_OF_THE_PROCESS):
            calls[function] += count
    return calls


def _name_module(file: str) -> str:
    """Return the module of a file, judging by its path."""
    path = Path(file)
    for root in sorted(sys.path, key=len, reverse=True):
        if root and path.is_relative_to(root):
            return ".".join(path.relative_to(root).with_suffix("").parts)
    return path.stem


def count_sizes(dimension: Dimension, first: int, folder: Path) -> list[Counter[str]]:
    """Return the calls at each size; work that a process does once is done beforehand."""
    dimension.prepare(first, folder / "before")()
    counts = []
    for doubling in range(DOUBLINGS + 1):
        work = dimension.prepare(first << doubling, folder / str(doubling))
        counts.append(count_calls(work))
    return counts


def find_growth(counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return the powers of the functions that grow faster than the limit, fastest first."""
    totals = [sum(calls.values()) for calls in counts]
    powers = {}
    for name, calls in counts[-1].items():
        if calls >= SHARE * totals[-1]:
            powers[name] = _find_power([count.get(name, 0) for count in counts])
    powers["all functions"] = _find_power(totals)
    growing = [name for name in powers if powers[name] > LIMIT]
    return {name: powers[name] for name in sorted(growing, key=powers.__getitem__, reverse=True)}


def _find_power(calls: Sequence[int]) -> float:
    """Return the power by which the calls grow in the last doublings.

    Calls that stay constant, or that fill lookup tables at first, say nothing about growth.
    """
    added, added_last = calls[-2] - calls[-3], calls[-1] - calls[-2]
    if added <= 0 or added_last <= 0:
        return 0.0
    return math.log2(added_last / added)


def growth(folder: Path, sizes: Sizes) -> Result:
    """Measure all dimensions at the sizes of the full run or of CI."""
    warnings.simplefilter("ignore", FutureWarning)  # raised by torch about copies of its own trees
    powers: dict[str, float] = {}
    mending: list[str] = []
    for name, dimension in DIMENSIONS.items():
        own = folder / name
        own.mkdir()
        counts = count_sizes(dimension, dimension.sizes[sizes.growth], own)
        for function, power in find_growth(counts).items():
            if function not in KNOWN:
                mending.append(f"{name}: {function} by the power {power:.2f}")
        powers[name] = _find_power([sum(calls.values()) for calls in counts])
    ratio = max(powers.values())
    figures = [f"{name} {power:.2f}" for name, power in powers.items()]
    return Result(
        case="growth",
        ratio=ratio,
        limit=LIMIT,
        ok=not mending,
        measured=", ".join(figures),
        to_reach=f"at most {LIMIT}, and so for each function",
        note="; ".join(mending) or "no function grows faster than what it is called for",
        figures={"powers": powers},
    )
