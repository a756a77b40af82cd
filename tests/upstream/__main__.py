"""`python -m tests.upstream [FILES]`: upstream's operator tests through this pipeline."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from .collect import FLOWS, find_files
from .compare import BROKEN, CAUGHT, Found, compare

parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
parser.add_argument(
    "files", nargs="?", default="*/*", help="a pattern such as ops/add, operators/*"
)
parser.add_argument("--flow", nargs="*", choices=FLOWS, default=FLOWS, help="of the suite")
parser.add_argument("--checkout", type=Path, help="an ExecuTorch checkout; by default the wheel's")
parser.add_argument("-k", default="", help="only tests of these names, as pytest takes them")
parser.add_argument("--at-once", type=int, default=4, help="test files whose cases make a package")
parser.add_argument(
    "--json",
    type=Path,
    help="what became of each case, one a line; packages that stand there are not made again",
)
parser.add_argument("--folder", type=Path, help="keeps the workspaces there")
parser.add_argument("--no-run", action="store_true", help="only lowers, and compares bytes")
arguments = parser.parse_args()

folder = arguments.folder or Path(tempfile.mkdtemp())
record = arguments.json or folder / "cases.json"
record.parent.mkdir(parents=True, exist_ok=True)
record.touch()
found = [Found(**json.loads(line)) for line in record.read_text().splitlines()]
done = {each.package.rpartition("-")[0] for each in found}
files = find_files(arguments.checkout, arguments.files)
own = [path for path in files if path.parent.name == "ops"]
suite = [path for path in files if path.parent.name != "ops"]
for flow, paths in [*((flow, suite) for flow in arguments.flow), ("xnnpack", own)]:
    for start in range(0, len(paths), arguments.at_once):
        some = paths[start : start + arguments.at_once]
        name = f"{flow}{'-ops' if paths is own else ''}-{some[0].stem[5:]}"
        if name in done:
            continue
        try:
            new = compare(some, flow, folder, name, arguments.k, not arguments.no_run)
        except (RuntimeError, TimeoutError) as error:
            new = [Found(f"{name}-0", "", BROKEN, reason=str(error))]
        print(name, dict(Counter(word for each in new for word in each.words)), flush=True)
        with record.open("a") as lines:
            lines.writelines(json.dumps(asdict(each)) + "\n" for each in new)
        found += new
for each in found:
    if each.bad:
        print(each)
counts = Counter(word for each in found for word in each.words)
print(*(f"{count:6} {what}" for what, count in sorted(counts.items())), sep="\n")
faults = Counter(each.fault for each in found if each.verdict == CAUGHT)
print(*(f"{count:6} {fault}" for fault, count in faults.most_common()), sep="\n")
raise SystemExit(any(each.bad for each in found))
