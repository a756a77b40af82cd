"""Memory and disk use of methods that are almost nothing but weights, against the plain script.

Each size gets a new workspace: one method of linear layers for XNNPACK, compiled, linked and
validated by one worker. Peaks are per action of the worker and include mapped files. The system can
reclaim these when it needs memory, so the package is validated once more, doit included, in a
control group limited to the target.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.groups import control_group, entering
from benchmarks.measure import BenchmarkError, Result, run
from benchmarks.shipped import PLAIN
from benchmarks.workspaces import Checkout, Sizes, new_checkout, write_config

MIB = 1 << 20
BASE = 460 * MIB  # taken by torch and ExecuTorch
COPIES = {"compile": 1.5, "validate": 1.2}  # of the weights, on top of BASE
_FITS = {True: "done", False: "killed", None: "no control group can be made"}
DISK = 1.1  # copies of the weights in the store
_LAYER = 4096  # inputs and outputs of a linear layer: 64 MiB


@dataclass(frozen=True)
class Weighed:
    """The figures for one size of weights.

    They are peaks in bytes by action and of the plain script, the bytes of the store, and whether
    validation succeeds in a control group (None if no group can be made).
    """

    weights: int
    peaks: dict[str, int]
    plain: int
    store: int
    fits: bool | None

    def copies(self, action: str) -> float:
        """Return how many times the weights an action held, in addition to the libraries."""
        return (self.peaks[action] - BASE) / self.weights

    @property
    def ok(self) -> bool:
        return (
            self.copies("compile") <= COPIES["compile"]
            and (self.fits or self.copies("validate") <= COPIES["validate"])
            and self.store <= DISK * self.weights
        )

    def __str__(self) -> str:
        peaks = ", ".join(f"{name} {peak >> 20} MiB" for name, peak in sorted(self.peaks.items()))
        return (
            f"{self.weights >> 20} MiB: {peaks}, plain script {self.plain >> 20} MiB, "
            f"store {self.store / self.weights:.2f} copies, "
            f"validation in {_limit(self.weights) >> 20} MiB: {_FITS[self.fits]}"
        )


def memory(folder: Path, sizes: Sizes) -> Result:
    found = [_weigh(folder / f"weights{size}", size) for size in sizes.weights]
    worst = {name: max(each.copies(name) for each in found) for name in COPIES}
    copies = max(each.store / each.weights for each in found)
    told = [f"{name} {most:.2f} x weights, mapped files included" for name, most in worst.items()]
    fit = {each.fits for each in found}
    told.append("validated in a control group of 1.2 x" if fit == {True} else "in no control group")
    limits = [f"{name} {most:g}" for name, most in COPIES.items()]
    return Result(
        case="memory",
        ratio=max(worst.values()),
        limit=max(COPIES.values()),
        ok=all(each.ok for each in found),
        measured=f"beside {BASE >> 20} MiB: {', '.join(told)}; {copies:.2f} copies in the store",
        to_reach=f"<= {', '.join(limits)}, of memory that can't be taken back; {DISK:g} copies",
        note="; ".join(map(str, found)),
        figures={str(each.weights >> 20): _figures(each) for each in found},
    )


def _weigh(root: Path, megabytes: int) -> Weighed:
    checkout = new_checkout(root)
    name = f"weights{megabytes}"
    archive = root / "models" / f"{name}.pt2"
    # In another process, since this one would keep the memory.
    code = f"from benchmarks.memory import export; export({str(archive)!r}, {megabytes})"
    run([sys.executable, "-c", code], root, checkout.environment)
    write_config(checkout, name, name, ["forward"])
    folders = [str(checkout.root / each) for each in ("models", "partition_configs")]
    out = str(root / "plain")
    plain = run([sys.executable, str(PLAIN), *folders, out, name], root, checkout.environment)
    checkout.doit("-n", "1")
    stored = sum(path.stat().st_blocks * 512 for path in checkout.store.rglob("*"))
    peaks = _peaks(checkout)
    return Weighed(megabytes * MIB, peaks, plain.peak, stored, _fits(checkout, megabytes * MIB))


def _limit(weights: int) -> int:
    return BASE + int(COPIES["validate"] * weights)


def _fits(checkout: Checkout, weights: int) -> bool | None:
    """Install and validate the package again in a control group; return whether it fits.

    No file may be in the page cache, where it would be charged to another group.
    """
    for path in checkout.store.glob("actions/*/*.json"):
        if json.loads(path.read_text())["key"].get("kind") in ("measure", "validate"):
            path.unlink()
    for path in (checkout.root / "build").glob(".state/*"):
        path.unlink()
    os.sync()
    for path in filter(Path.is_file, checkout.root.rglob("*")):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, "-m", "doit", "-n", "1"]
    try:
        with control_group(_limit(weights)) as group:
            run(entering(group, command), checkout.root, checkout.environment)
    except OSError:
        return None
    except BenchmarkError:
        return False
    return "validate" in _peaks(checkout)


def export(archive: str, megabytes: int) -> None:
    """Write an archive of a method with this many MiB of weights."""
    from torch import nn

    from benchmarks.models import exported, write_archive

    count = megabytes * MIB // (4 * _LAYER * _LAYER)
    linears = (nn.Linear(_LAYER, _LAYER, bias=False) for _ in range(count))
    model = nn.Sequential(*(each for linear in linears for each in (linear, nn.ReLU())))
    write_archive(Path(archive), {"forward": exported(model, 1, _LAYER)})


def _peaks(checkout: Checkout) -> dict[str, int]:
    """Return the peak of each kind of action in the last run."""
    actions = json.loads((checkout.root / "build" / "run.json").read_text())["actions"]
    return {each["kind"]: each["peak_bytes"] for each in actions if each["peak_bytes"]}


def _figures(each: Weighed) -> dict[str, Any]:
    return {
        "peaks": each.peaks,
        "plain_peak": each.plain,
        "store_bytes": each.store,
        "fits": each.fits,
    }
