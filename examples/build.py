"""Builds packages with doit and compares their bytes with the oracle's.

The measurements are kept in `examples/build/gallery.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "build" / "gallery.json"


@dataclass(frozen=True)
class Record:
    """The measurements of one package.

    `seconds` and `joint_seconds` are the CPU seconds of the build from an empty store and of the
    oracle, each including all processes.
    """

    package: str
    methods: list[str]
    backends: list[str]
    size: int
    nodes: int
    delegated_nodes: int
    valid: bool
    max_error: float
    same_bytes: bool
    seconds: float
    joint_seconds: float


class BuildError(Exception):
    """doit or the oracle failed; the message is the last of its output."""


def packages() -> list[str]:
    """Return the names of all packages, sorted."""
    paths = (HERE / "partition_configs").glob("*.yaml")
    return sorted(path.stem for path in paths if not path.name.startswith("_"))


def build(package: str) -> Record:
    """Build a package from an empty store and with the oracle, and return the record.

    Raises:
        BuildError: one of them failed; if validation failed, the message says so.
    """
    with tempfile.TemporaryDirectory(prefix="gallery-") as folder:
        root = Path(folder)
        _Command("checkpoints.py").finish()
        joint = _Command("joint.py", package, str(root / "joint.pte"))
        store = {"PTE_PIPELINE_STORE": str(root / "store")}
        built = _Command("-m", "doit", f"validate:{package}", **store)
        try:
            seconds = built.finish()
        finally:
            joint_seconds = joint.finish()
        same = _built(package).read_bytes() == (root / "joint.pte").read_bytes()
    return _record(package, same, seconds, joint_seconds)


def _built(package: str) -> Path:
    (path,) = (HERE / "build" / package).glob("*.pte")
    return path


class _Command:
    """A Python process started in the workspace."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._command = [sys.executable, *arguments]
        self._output = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command,
            cwd=HERE,
            env={**os.environ, **environment, "PYTHONPATH": _search_path()},
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def finish(self) -> float:
        """Wait for the process; return its CPU seconds, children included. Raises BuildError."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._output.seek(0)
        if status:
            printed = self._output.read()[-3000:]
            raise BuildError(f"{' '.join(self._command[1:])}:\n{printed}")
        return usage.ru_utime + usage.ru_stime


def _search_path() -> str:
    return os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))


def _record(package: str, same: bool, seconds: float, joint_seconds: float) -> Record:
    folder = HERE / "build" / package
    manifest = json.loads((folder / "manifest.json").read_text())
    report = json.loads((folder / "report.json").read_text())
    delegation = [method["delegation"] for method in manifest["methods"].values()]
    programs = [method for method in report["methods"] if method["kind"] == "program"]
    return Record(
        package=package,
        methods=sorted(manifest["methods"]),
        backends=sorted({backend for each in delegation for backend in each["partitions"]}),
        size=sum(file["size"] for file in manifest["files"].values()),
        nodes=sum(each["nodes"] for each in delegation),
        delegated_nodes=sum(each["delegated_nodes"] for each in delegation),
        valid=bool(report["ok"]) and len(programs) == len(manifest["methods"]),
        max_error=max(_worst_error(method) for method in programs),
        same_bytes=same,
        seconds=round(seconds, 1),
        joint_seconds=round(joint_seconds, 1),
    )


def _worst_error(method: dict[str, Any]) -> float:
    """Return the worst error of a method on its examples and on generated inputs."""
    generated = method["on_generated"] or {"max_abs": 0.0}
    return max(float(method["max_abs"]), float(generated["max_abs"]))


def read_records() -> dict[str, Any]:
    """Return the records of earlier builds, keyed by package."""
    return json.loads(RECORDS.read_text()) if RECORDS.exists() else {}


def keep(record: Record) -> None:
    """Save a record, replacing an earlier one of the same package."""
    records = {**read_records(), record.package: asdict(record)}
    RECORDS.parent.mkdir(exist_ok=True)
    RECORDS.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
