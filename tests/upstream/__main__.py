"""`python -m tests.upstream [FILES]`: upstream's operator tests through this pipeline."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

from .collect import FLOWS, find_files
from .compare import ALARM, LOST, OTHER, compare

parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
parser.add_argument(
    "files", nargs="?", default="*/*", help="a pattern such as ops/add, operators/*"
)
parser.add_argument("--flow", nargs="*", choices=FLOWS, default=FLOWS, help="of the suite")
parser.add_argument("--checkout", type=Path, help="an ExecuTorch checkout; by default the wheel's")
parser.add_argument("-k", default="", help="only tests of these names, as pytest takes them")
parser.add_argument("--at-once", type=int, default=4, help="test files whose cases make a package")
parser.add_argument("--json", type=Path, help="also writes what became of each case, one a line")
parser.add_argument("--folder", type=Path, help="keeps the workspaces there")
parser.add_argument("--no-run", action="store_true", help="only lowers, and compares bytes")
arguments = parser.parse_args()

folder = arguments.folder or Path(tempfile.mkdtemp())
counts: Counter[str] = Counter()
found = find_files(arguments.checkout, arguments.files)
own = [path for path in found if path.parent.name == "ops"]
suite = [path for path in found if path.parent.name != "ops"]
for flow, files in [*((flow, suite) for flow in arguments.flow), ("xnnpack", own)]:
    for start in range(0, len(files), arguments.at_once):
        some = files[start : start + arguments.at_once]
        name = f"{flow}{'-ops' if files is own else ''}-{some[0].stem[5:]}"
        for outcome in compare(some, flow, folder, name, arguments.k, not arguments.no_run):
            counts += outcome.count()
            print(outcome.package, dict(outcome.count()), flush=True)
            for case, told in outcome.cases.items():
                if {ALARM, LOST} & set(told) or outcome.bytes == OTHER:
                    print("  ", case, *told, flush=True)
            if arguments.json:
                with arguments.json.open("a") as record:
                    for case, told in outcome.cases.items():
                        record.write(
                            json.dumps([outcome.package, outcome.bytes, case, *told]) + "\n"
                        )
print(*(f"{count:6} {what}" for what, count in sorted(counts.items())), sep="\n")
raise SystemExit(bool(counts[LOST] + counts[OTHER] + counts[ALARM]))
