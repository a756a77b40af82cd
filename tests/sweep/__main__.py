"""`python -m tests.sweep [-k NAME] [--json FILE]`: small programs of every kind, lowered twice."""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from .cases import load_cases
from .compare import Found, compare


def main() -> bool:
    """Compare cases and print their outcomes; return whether all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("-k", default="", help="only cases whose name holds this")
    parser.add_argument("--at-once", type=int, default=8, help="packages of a workspace")
    parser.add_argument("--json", default=os.devnull, help="what became of each case, one a line")
    parser.add_argument("--folder", type=Path, help="keeps the workspaces there")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    found = []
    with tempfile.TemporaryDirectory() as scratch, open(arguments.json, "w") as record:
        for each in _sweep(arguments.k, arguments.at_once, arguments.folder or Path(scratch)):
            print(each, flush=True)
            record.write(json.dumps(asdict(each)) + "\n")
            record.flush()
            found.append(each)
    counts = Counter(word for each in found for word in each.words)
    print(*(f"{count:6} {what}" for what, count in sorted(counts.items())), sep="\n")
    return bool(found) and not any(each.bad for each in found)


def _sweep(pattern: str, at_once: int, folder: Path) -> Iterator[Found]:
    cases = [(name, make) for name, make in load_cases().items() if pattern in name]
    for start in range(0, len(cases), at_once):
        yield from compare(dict(cases[start : start + at_once]), folder / str(start))


if __name__ == "__main__":
    raise SystemExit(not main())
