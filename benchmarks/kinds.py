"""All packages of this repository, built by one worker with an empty store.

It measures the CPU time of the whole process tree for each kind of action.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Result
from benchmarks.workspaces import Sizes, shipped_exporters

# The commands in build order; each needs the results of the previous one. The words stand for all
# actions of a kind; `lower` links, and the bare `doit` validates.
STEPS = {
    "export": ("export",),
    "quantize": ("quantize",),
    "compile": ("compile",),
    "link": ("lower",),
    "validate": (),
}
LIMITS = {"quantize": 12.0, "validate": 30.0}  # CPU seconds


def kinds(folder: Path, sizes: Sizes) -> Result:
    """Run `doit -n 1` once for each kind of action.

    Each run starts a worker that imports torch and ExecuTorch again, which is about 2 CPU seconds
    of each figure.
    """
    checkout = shipped_exporters(folder / "workspace", sizes.all_shipped)
    seconds = {kind: checkout.doit("-n", "1", *words).cpu for kind, words in STEPS.items()}
    ratio = max(seconds[kind] / limit for kind, limit in LIMITS.items())
    figures = ", ".join(f"{kind} {cpu:.1f}" for kind, cpu in seconds.items())
    limits = ", ".join(f"{kind} {limit:g}" for kind, limit in LIMITS.items())
    return Result(
        case="kinds",
        ratio=ratio,
        limit=1.0,
        ok=ratio <= 1.0,
        measured=f"{figures} CPU s",
        to_reach=f"at most {limits} CPU s",
        note=f"{len(sizes.all_shipped)} packages, {sum(seconds.values()):.0f} CPU s in all; each "
        "kind has a start of a worker of its own",
        figures={f"{kind} seconds": [cpu] for kind, cpu in seconds.items()},
    )
