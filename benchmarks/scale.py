"""A workspace of a thousand packages: what it costs to find that nothing is to be done, in CPU time
of one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.measure import BenchmarkError, Result, rounded
from benchmarks.workspaces import Sizes, finished_checkout

LIMITS = {"doit": 1.0, "doit plan": 3.0}  # seconds, to reach
OTHERS = ("doit list", "doit lower:package1", "doit explain package1", "doit cache stats")


def scale(folder: Path, sizes: Sizes) -> Result:
    """Raises BenchmarkError where there is something to do."""
    packages, methods = sizes.scale
    checkout = finished_checkout(folder / "workspace", packages, methods)
    first = checkout.doit()  # which reads all files, and remembers them
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


def _told(seconds: Mapping[str, float], commands: Iterable[str]) -> str:
    return ", ".join(f"`{command}` {seconds[command]:.2f} s" for command in commands)
