"""`python -m tests.mutations.core [N ...]`: does the suite see thirty faults put into the core?

Each fault is one line of `pipeline/`, changed in a copy of the checkout; then the tests that should
see it run there. Prints which were caught, by which test, and how long that took; exit status 1 if
one survived. It is run by hand when tests are moved, merged or made faster.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Fault(NamedTuple):
    """A line of a module, what it becomes, and the tests that should see it."""

    module: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault("store/digest.py", "blake3(data).hexdigest()", "blake3(data[:64]).hexdigest()", "store"),
    Fault(
        "store/blobs.py",
        "return data if digest.hash_bytes(data) == blob",
        "return data if True",
        "store",
    ),
    Fault("store/entries.py", "return entry if whole and", "return entry if", "store"),
    Fault("store/digest.py", "if hasher.hexdigest() != expected:", "if False:", "store"),
    Fault(
        "store/file_digests.py",
        'if entry and entry["stat"] == before and name in entry',
        'if entry and entry["stat"][1] == before[1] and name in entry',
        "store",
    ),
    Fault("program/canonical.py", '["graph"])}', '["graph"]) and None}', "program"),
    Fault(
        "program/canonical.py",
        'numbers.setdefault(match[0], f"symbol {len(numbers)}")',
        'numbers.setdefault(match[0], "symbol")',
        "program",
    ),
    Fault("config/matrix.py", "found = self._without(found, entry)", "pass", "config"),
    Fault(
        "config/variables.py",
        "return value or default.removeprefix",
        "return default.removeprefix",
        "config",
    ),
    Fault("config/variables.py", "self.read.add(name)", "pass", "config plan"),
    Fault("plan/kinds/compile.py", '"program": source.program,', '"program": "",', "plan"),
    Fault("plan/kinds/compile.py", "        **lowering,\n", "", "plan"),
    Fault("plan/kinds/compile.py", '"order": list(inputs.sources) if', '"order": [] if', "plan"),
    Fault("plan/kinds/quantize.py", "if spec.depends_on_host:", "if False:", "plan"),
    Fault(
        "plan/status.py",
        "damage = find_damage(plan, package, recorded)\n",
        'damage = ""\n',
        "plan cli/test_tasks.py",
    ),
    Fault(
        "compile/link.py",
        "1 + self._index_mutable(owner.mutable[index], tensor)",
        "1 + _index(self.constants, owner.mutable[index])",
        "compile/test_link.py",
    ),
    Fault(
        "compile/link.py",
        "owned.sort(key=lambda pair: pair[0].name)",
        "pass",
        "compile/test_link.py",
    ),
    Fault(
        "compile/objects.py",
        "content(entry.blob), entry.alignment, tag, layout",
        "content(entry.blob), entry.alignment, None, layout",
        "compile/test_link.py",
    ),
    Fault(
        "compile/objects.py",
        "content(entry.blob), entry.alignment, tag, layout",
        "content(entry.blob), 1, tag, layout",
        "compile/test_link.py",
    ),
    Fault(
        "compile/preprocess/key.py",
        "self.value(list(node.users))  # passes take the first one",
        "pass",
        "compile/preprocess/test_key.py",
    ),
    Fault(
        "compile/preprocess/key.py",
        "            self.value(node.args)\n",
        "",
        "compile/preprocess/test_key.py",
    ),
    Fault(
        "compile/module_filter.py",
        "check is None or (node.graph is outermost and check(node))",
        "check is None or check(node)",
        "compile/test_module_filter.py",
    ),
    Fault(
        "devices/interpreter/execute.py",
        "return value.clone() if isinstance(value, torch.Tensor) else value",
        "return value.double() if isinstance(value, torch.Tensor) else value",
        "devices",
    ),
    Fault(
        "devices/interpreter/execute.py",
        "following = call.destination_instruction",
        "pass",
        "devices",
    ),
    Fault(
        "validate/metrics.py",
        "float(distance.max()),",
        "float(distance.mean()),",
        "validate/test_metrics.py",
    ),
    Fault(
        "validate/metrics.py",
        "disagreeing += int(",
        "disagreeing += 0 * int(",
        "validate/test_metrics.py",
    ),
    Fault(
        "validate/limits.py",
        "if value > limit:",
        "if value > 2 * limit:",
        "validate/test_package.py validate/test_metrics.py",
    ),
    Fault(
        "features/gates/gates.py",
        "return beyond <= ROUNDING",
        "return beyond <= 1",
        "features/gates/test_gates.py",
    ),
    Fault(
        "run/install.py",
        "workspace.write_state(package, {**state, section: record})",
        "pass",
        "cli/test_tasks.py",
    ),
    Fault(
        "run/batch.py",
        'if event.outcome == "lost" and attempt < _ATTEMPTS - 1:',
        "if False:",
        "store/test_store_faults.py",
    ),
]


def run(fault: Fault, checkout: Path) -> str:
    """Return the test that catches a fault, or nothing."""
    path = checkout / "pipeline" / fault.module
    source = path.read_text(encoding="utf-8")
    if source.count(fault.old) != 1:
        raise SystemExit(f"{fault.module}: holds {fault.old!r} {source.count(fault.old)} times")
    path.write_text(source.replace(fault.old, fault.new), encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider"]
            + ["-m", "slow or not slow"] * ("faults" in fault.tests)  # whose tests are slow
            + [f"tests/{name}" for name in fault.tests.split()],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            capture_output=True,
            text=True,
        )
    finally:
        path.write_text(source, encoding="utf-8")
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit status {done.returncode}"


def main(numbers: list[int]) -> int:
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
        for name in files.stdout.splitlines():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
        for number in numbers or range(1, len(FAULTS) + 1):
            fault, began = FAULTS[number - 1], time.monotonic()
            caught = run(fault, checkout)
            survived += not caught
            seconds = time.monotonic() - began
            print(
                f"{number:>2} {fault.module:<32} {seconds:5.0f} s  {caught or 'SURVIVED'}",
                flush=True,
            )
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
