"""Runs the cases, prints a table and writes JSON.

A case is a function that takes an empty folder and the sizes. Cases import what they need only when
it is their turn, since most of them need torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from benchmarks.large import DECODERS
from benchmarks.measure import BenchmarkError, Result, machine
from benchmarks.workspaces import QUICK, REPOSITORY, Sizes

# The module and function of each case, in the order in which they run.
CASES = {
    "noop": ("noop", "noop"),
    "scale": ("scale", "scale"),
    "family-scale": ("scale", "family_scale"),
    "one-method": ("changes", "one_method"),
    "one-partition": ("changes", "one_partition"),
    "fresh-checkout": ("shipped", "fresh_checkout"),
    "exported-again": ("shipped", "exported_again"),
    "remote": ("remote", "remote"),
    "cold": ("cold", "cold"),
    "kinds": ("kinds", "kinds"),
    "weights": ("weights", "weights"),
    "tracking": ("tracking", "tracking"),
    "constants": ("constants", "constants"),
    "miss-overhead": ("overhead", "miss_overhead"),
    "family": ("family", "family"),
    "cluster": ("cluster", "cluster"),
    "hashing": ("hashing", "hashing"),
    "memory": ("memory", "memory"),
    "large": ("large", "large"),
    "index": ("index", "index"),
    "growth": ("growth", "growth"),
}
HEADINGS = ("case", "measured", "to reach", "verdict")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    sizes = replace(sizes, decoders=tuple(options.decoders))
    cases = [case for case in CASES if case in (options.only or CASES)]
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        facts = machine(Path(folder))
        results = [_measure(case, Path(folder), sizes) for case in cases]
    print("\n".join(_report(facts, results, options.quick)))
    _write(options.json, {"machine": facts, "quick": options.quick}, results)
    return int(options.check and not all(result.ok for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="CASE")
    parser.add_argument(
        "--json", type=Path, default=REPOSITORY / "build" / "benchmarks.json", metavar="FILE"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, in about two minutes")
    parser.add_argument(
        "--decoders",
        nargs="+",
        choices=list(DECODERS),
        default=["6M"],
        metavar="SIZE",
        help=f"decoders of the case `large`: {', '.join(DECODERS)}",
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a case is out of reach")
    return parser


def _measure(case: str, folder: Path, sizes: Sizes) -> Result:
    module, function = CASES[case]
    own = folder / case
    own.mkdir()
    started = time.perf_counter()
    try:
        result = getattr(import_module(f"benchmarks.{module}"), function)(own, sizes)
    except BenchmarkError as error:
        result = Result(case, None, None, False, "could not be measured", "", note=str(error))
    took = f"{time.perf_counter() - started:.0f} s"
    why = "" if result.figures else f"\n{result.note}"
    print(f"{case}: {result.measured} (took {took}){why}", file=sys.stderr, flush=True)
    return result


def _report(facts: dict[str, object], results: Sequence[Result], quick: bool) -> Iterable[str]:
    yield ", ".join(f"{name} {value}" for name, value in facts.items())
    yield ""
    verdict = {True: "reached", False: "missed"}
    lines: list[tuple[str, ...]] = [HEADINGS]
    lines += [(r.case, r.measured, r.to_reach, verdict[r.ok]) for r in results]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()
    yield ""
    yield from (f"{result.case}: {result.note}" for result in results)
    if quick:
        yield "\nThese are small sizes; what is to be reached is meant for the default ones."


def _write(path: Path, facts: dict[str, object], results: Sequence[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**facts, "cases": [asdict(r) for r in results]}, indent=1, allow_nan=False)
    path.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
