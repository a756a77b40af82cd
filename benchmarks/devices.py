"""Validates packages on devices, and writes the table of docs/guides/proving-on-devices.md.

python -m benchmarks.devices                  this repository's packages
python -m benchmarks.devices llama vit        these; the gallery's packages need its extra
python -m benchmarks.devices --gallery        the gallery's packages
python -m benchmarks.devices --table          write the table from earlier measurements

The devices `native_sdk` and `native_sdk_aarch64` are configured by the environment
(`PTE_PIPELINE_NATIVE_SDK`), and so is the store. Records are kept in build/devices.json. The exit
status is 1 if a device disagrees with this machine, or adds more than the allowed time to a
validation.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
GALLERY = REPOSITORY / "examples"
RECORDS = REPOSITORY / "build" / "devices.json"
PAGE = REPOSITORY / "docs" / "guides" / "proving-on-devices.md"
BEGIN = "<!-- python -m benchmarks.devices --table -->\n"
END = "<!-- end of the table -->\n"
DEVICES = ("native", "qemu:cortex-a53", "qemu:cortex-a72", "qemu:neoverse-n1")
HEADINGS = ("package", "ExecuTorch", "verdict", *(f"`{device}`" for device in DEVICES))
_NATIVE_SECONDS, _EMULATED_SECONDS = 2.0, 10.0  # that a device may add to a validation
_TAIL = 2000  # characters to show of a failed build's output
Json = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure packages and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.devices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--gallery", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    if options.table:
        write_table(read_records())
        return 0
    known = {name: root for root in (GALLERY, REPOSITORY) for name in find_packages(root)}
    unknown = [name for name in options.packages if name not in known]
    if unknown:
        parser.error(f"no package {', '.join(unknown)}; known: {', '.join(known)}")
    root = GALLERY if options.gallery else REPOSITORY
    packages = options.packages or find_packages(root)
    problems = [problem for name in packages for problem in _measure(name, known[name])]
    print(*problems, sep="\n")
    return int(bool(problems))


def find_packages(root: Path) -> list[str]:
    """Return the sorted package names of a workspace."""
    paths = (root / "partition_configs").glob("[!_]*.yaml")
    return sorted(path.stem for path in paths)


def _measure(package: str, root: Path) -> list[str]:
    """Validate a package on all devices, keep its record, and return a line for each problem."""
    with tempfile.TemporaryDirectory(prefix="devices-") as folder:
        copy = Path(folder)
        _copy_workspace(root, copy, package)
        command = [sys.executable, "-m", "doit", f"validate:{package}"]
        allow = {"PTE_PIPELINE_ALLOW": "not-judged,not-run", "PYTHONPATH": str(REPOSITORY)}
        environment = {**os.environ, **allow}
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
        path = copy / "build" / package / "report.json"
        if not path.is_file():
            return [f"{package}: not validated\n{(done.stdout + done.stderr)[-_TAIL:]}"]
        record = make_record(json.loads(path.read_text()))
    _keep(package, record)
    problems = find_problems(package, record)
    print(f"{package}: {record['verdict']}; {record['devices']}", flush=True)
    return problems


def _copy_workspace(root: Path, copy: Path, package: str) -> None:
    """Copy models and configs, and add the devices to the config of the package."""
    for folder in ("models", "partition_configs"):
        shutil.copytree(root / folder, copy / folder)
    shutil.copy(root / "dodo.py", copy)
    if (root / "checkpoints.py").is_file():
        shutil.copy(root / "checkpoints.py", copy)
        subprocess.run([sys.executable, "checkpoints.py"], cwd=copy, check=True)
    path = copy / "partition_configs" / f"{package}.yaml"
    config = yaml.safe_load(path.read_text())
    config.setdefault("validate", {})["devices"] = list(DEVICES)
    path.write_text(yaml.safe_dump(config, sort_keys=False))


def make_record(report: Json) -> Json:
    """Return the table's data on a package, from its report."""
    methods = [method for method in report["methods"] if method.get("devices")]
    devices = {}
    for device in DEVICES:
        facts = [method["devices"][device] for method in methods if device in method["devices"]]
        devices[device] = _join_facts(facts)
    return {
        "executorch": version("executorch"),
        "verdict": report["verdict"],
        "of_limit": _find_worst([method for method in report["methods"] if "of_limit" in method]),
        "devices": devices,
    }


def _join_facts(methods: Sequence[Json]) -> Json:
    """Return the record of a package on one device, merged from the records of its methods."""
    ran = [facts for facts in methods if "calls" in facts]
    verdicts = sorted({facts["verdict"] for facts in methods})
    reasons = sorted({facts["reason"] for facts in methods if facts["reason"]})
    return {
        "verdict": ", ".join(verdicts) or "not run",
        "reason": "; ".join(reasons),
        "of_limit": _find_worst(ran),
        "calls": sum(facts["calls"] for facts in ran),
        "seconds": max((facts["seconds"] for facts in ran), default=None),
    }


def _find_worst(methods: Sequence[Json]) -> float | None:
    """Return the largest ratio of an error to its limit, or None if there is none."""
    ratios = [facts["of_limit"] for facts in methods if facts["of_limit"] is not None]
    return max(map(float, ratios), default=None)


def find_problems(package: str, record: Json) -> list[str]:
    """Return a line for each device that failed a package or took too long."""
    problems = []
    for device, facts in record["devices"].items():
        most = _NATIVE_SECONDS if device == "native" else _EMULATED_SECONDS
        seconds = facts["seconds"] or 0.0
        if "failed" in facts["verdict"]:
            problems.append(f"{package} on {device}: {facts['reason']}")
        if seconds > most:
            problems.append(f"{package} on {device}: took {seconds:.1f} s, at most {most:g} s")
    return problems


def read_records() -> Json:
    """Return the records of earlier runs, keyed by package."""
    return json.loads(RECORDS.read_text()) if RECORDS.exists() else {}


def _keep(package: str, record: Json) -> None:
    records = {**read_records(), package: record}
    RECORDS.parent.mkdir(exist_ok=True)
    RECORDS.write_text(json.dumps(records, indent=1) + "\n")


def make_table(records: Json) -> str:
    """Return the Markdown table of this repository's packages, then the gallery's measured ones."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    for package in (*find_packages(REPOSITORY), *find_packages(GALLERY)):
        if package in records:
            rows.append(_make_row(package, records[package]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _make_row(package: str, record: Json) -> tuple[str, ...]:
    cells = [_format(record["devices"][device]) for device in DEVICES]
    return (f"`{package}`", record["executorch"], record["verdict"], *cells)


def _format(facts: Json) -> str:
    words = [facts["verdict"]]
    if facts["of_limit"] is not None:
        words.append(f"{facts['of_limit']:.2g}")
    if facts["seconds"] is not None:
        words.append(f"{facts['calls']} calls in {facts['seconds']:.1f} s")
    return ", ".join(words)


def write_table(records: Json, page: Path = PAGE) -> None:
    """Write the table into the page, between its markers."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    page.write_text(head + BEGIN + make_table(records) + END + rest.partition(END)[2])


if __name__ == "__main__":
    sys.exit(main())
