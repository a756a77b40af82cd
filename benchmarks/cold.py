"""A cold build with one worker and with two, against the plain script.

All sides build the same packages from the same archives with nothing in the store, and each pays
for its imports.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.measure import BenchmarkError, Result, Run, in_turns, rounded, run
from benchmarks.shipped import PLAIN
from benchmarks.workspaces import (
    Checkout,
    Sizes,
    new_checkout,
    shipped_archives,
    write_config,
)

WHISPER, T5 = "whisper_tiny", "t5"
EACH_LIMIT, MEAN_LIMIT, MEMORY_LIMIT = 1.5, 2.0, 1.15
TRANSFORMER_LIMIT = 3.0
LIMITS = {WHISPER: TRANSFORMER_LIMIT, T5: TRANSFORMER_LIMIT}  # all others have EACH_LIMIT
WALL_LIMIT = 2.5  # for two workers


@dataclass(frozen=True)
class Sides:
    """The runs for one package: the plain script, and doit with one worker and with two."""

    plain: list[Run]
    ours: list[Run]
    two: list[Run]

    def ratio(self, what: str, side: str = "ours") -> float:
        """Return how many times as much the plain script takes as a side, each at its best."""
        return self.least("plain", what) / self.least(side, what)

    def least(self, side: str, what: str) -> float:
        return min(getattr(each, what) for each in getattr(self, side))


def cold(folder: Path, sizes: Sizes) -> Result:
    """Measure cold builds. Raises BenchmarkError if a side writes other bytes."""
    packages = [name for name in sizes.cold if name != T5 or find_spec("transformers")]
    sides = {package: _measure(folder / package, package, sizes) for package in packages}
    cpu = {package: each.ratio("cpu") for package, each in sides.items()}
    memory = max(1 / each.ratio("peak") for each in sides.values())
    mean = fmean(cpu.values())
    wall = min(each.ratio("wall", "two") for each in sides.values())
    ok = all(ratio >= LIMITS.get(package, EACH_LIMIT) for package, ratio in cpu.items())
    ok = ok and mean >= MEAN_LIMIT
    ok = ok and memory <= MEMORY_LIMIT and wall >= WALL_LIMIT
    each = ", ".join(f"{package} {ratio:.2f}" for package, ratio in cpu.items())
    return Result(
        case="cold",
        ratio=mean,
        limit=MEAN_LIMIT,
        ok=ok,
        measured=f"{mean:.2f} x less CPU time, {100 * (memory - 1):+.0f} % of memory, "
        f"two workers {wall:.2f} x faster",
        to_reach=f">= {MEAN_LIMIT:g} x less CPU time, each >= {EACH_LIMIT:g} x, "
        f"T5 and Whisper-tiny {TRANSFORMER_LIMIT:g} x, "
        f"<= {100 * (MEMORY_LIMIT - 1):+.0f} % of memory, two workers >= {WALL_LIMIT:g} x faster",
        note=f"{each}; same bytes; " + "; ".join(_describe(*pair) for pair in sides.items()),
        figures={"cpu_ratios": cpu, **{n: _figures(each) for n, each in sides.items()}},
    )


def _measure(folder: Path, package: str, sizes: Sizes) -> Sides:
    folder.mkdir()
    checkout = new_package(folder / "workspace", package)
    written: list[dict[str, bytes]] = []

    def plain(repeat: int) -> Run:
        out = Checkout(folder / "plain", checkout.store)
        shutil.rmtree(out.root, ignore_errors=True)
        places = [str(checkout.root / name) for name in ("models", "partition_configs")]
        command = [sys.executable, str(PLAIN), *places, str(out.root / "build"), package]
        done = run(command, checkout.root, checkout.environment)
        written.append(out.files())
        return done

    def ours(repeat: int, jobs: int = 1) -> Run:
        forget_builds(checkout)
        done = checkout.doit("-n", str(jobs), "lower")
        written.append(checkout.files())
        return done

    sides = Sides(*in_turns(sizes.cold_repeats, plain, ours, partial(ours, jobs=2)))
    if not written[0] or any(files != written[0] for files in written):
        raise BenchmarkError(f"{package}: the plain script and doit write other bytes")
    return sides


def forget_builds(checkout: Checkout) -> None:
    for left in (checkout.root / "build", checkout.store):
        shutil.rmtree(left, ignore_errors=True)
    for left in checkout.root.glob(".doit.sqlite3*"):
        left.unlink()


def new_package(root: Path, package: str) -> Checkout:
    """Make a workspace with a new store, and the archive and config of one package."""
    if package not in LIMITS:
        return shipped_archives(root, (package,), root / ".store")
    from benchmarks.models import write_archive

    checkout, programs = new_checkout(root), _export_transformer(package)
    write_config(checkout, package, package, list(programs))
    write_archive(root / "models" / f"{package}.pt2", programs)
    return checkout


def _export_transformer(package: str) -> dict[str, Any]:
    module = import_module("benchmarks.whisper" if package == WHISPER else "benchmarks.t5")
    programs: dict[str, Any] = module.export_methods()
    return programs


def _describe(package: str, sides: Sides) -> str:
    cpu, wall, peak = (
        [sides.least(side, what) for side in ("ours", "plain")] for what in ("cpu", "wall", "peak")
    )
    return (
        f"{package} {cpu[0]:.1f} of {cpu[1]:.1f} CPU s, {wall[0]:.1f} of {wall[1]:.1f} s "
        f"({sides.least('two', 'wall'):.1f} by two), "
        f"{peak[0] / 1e6:.0f} of {peak[1] / 1e6:.0f} MB"
    )


def _figures(sides: Sides) -> dict[str, Any]:
    return {
        f"{side}_{what}": rounded([getattr(each, what) for each in getattr(sides, side)])
        for side in ("plain", "ours", "two")
        for what in ("cpu", "wall", "peak")
    }
