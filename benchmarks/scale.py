"""A workspace of a thousand packages, and a family of hundreds, with nothing to do.

It measures the CPU time of one process that finds this out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.measure import BenchmarkError, Result, in_turns, rounded
from benchmarks.workspaces import Checkout, Sizes, finished_checkout

LIMITS = {"doit": 0.8, "doit plan": 1.2}  # targets in seconds
FAMILY_LIMIT = 1.5
OTHERS = ("doit list", "doit lower:package1", "doit explain package1", "doit cache stats")


def scale(folder: Path, sizes: Sizes) -> Result:
    """Measure a large workspace. Raises BenchmarkError if there is something to do."""
    packages, methods = sizes.scale
    checkout = finished_checkout(folder / "workspace", packages, methods)
    first = checkout.doit()  # reads all files and remembers them
    if not checkout.doit().output.startswith("up to date: "):
        raise BenchmarkError("the workspace is not up to date")
    seconds = {
        command: [checkout.doit(*command.split()[1:]).cpu for _ in range(sizes.repeats)]
        for command in (*LIMITS, *OTHERS)
    }
    least = {command: min(each) for command, each in seconds.items()}
    ratio = max(least[command] / limit for command, limit in LIMITS.items())
    return Result(
        case="scale",
        ratio=ratio,
        limit=1.0,
        ok=ratio <= 1.0,
        measured=_told(least, LIMITS),
        to_reach=f"at most {_told(LIMITS, LIMITS)}",
        note=f"{packages} packages x {methods} methods, CPU time; {_told(least, OTHERS)}; "
        f"the first `doit` {first.cpu:.1f} s",
        figures={f"{command} seconds": rounded(each) for command, each in seconds.items()},
    )


def family_scale(folder: Path, sizes: Sizes) -> Result:
    """Compare the packages of one family with as many packages without one.

    Raises:
        BenchmarkError: there is something to do.
    """
    one = finished_checkout(folder / "family", sizes.members, 1, "assistant")
    apart = finished_checkout(folder / "apart", sizes.members, 1)
    for checkout in (one, apart):
        checkout.doit()
        if not (done := checkout.doit().output).startswith("up to date: "):
            raise BenchmarkError(f"the workspace is not up to date: {done}")
    seconds: dict[str, list[list[float]]] = {}
    for command in LIMITS:
        sides = [partial(_cpu, each, command) for each in (one, apart)]
        seconds[command] = in_turns(sizes.repeats, *sides)
    ratios = {name: min(ours) / min(theirs) for name, (ours, theirs) in seconds.items()}
    ratio = max(ratios.values())
    least = {name: min(ours) for name, (ours, _) in seconds.items()}
    return Result(
        case="family-scale",
        ratio=ratio,
        limit=FAMILY_LIMIT,
        ok=ratio <= FAMILY_LIMIT,
        measured=", ".join(f"`{name}` {each:.2f} x" for name, each in ratios.items()),
        to_reach=f"each <= {FAMILY_LIMIT} x",
        note=f"{sizes.members} packages of one family, CPU time; {_told(least, LIMITS)}",
        figures={f"{name} seconds": [rounded(e) for e in both] for name, both in seconds.items()},
    )


def _cpu(checkout: Checkout, command: str, _: int) -> float:
    return checkout.doit(*command.split()[1:]).cpu


def _told(seconds: Mapping[str, float], commands: Iterable[str]) -> str:
    return ", ".join(f"`{command}` {seconds[command]:.2f} s" for command in commands)
