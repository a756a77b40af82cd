"""Builds the packages of trained models with doit, and runs each one's task.

The measurements are kept in `examples/trained/build/trained.json`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from examples.trained.measures import HERE, TASKS, Answers
from pte_pipeline import load_package

RECORDS = HERE / "build" / "trained.json"
PRECISIONS = ("fp32", "int8")
LEAST_KEPT = 0.95  # share of answers that a package must have in common with its module


@dataclass(frozen=True)
class Record:
    """The measurements of one package.

    `sqnr` is each method's worst value on its examples, in dB; `right` and `source_right` count
    the right answers among the `known` ones.
    """

    package: str
    model: str
    verdict: str
    size: int
    nodes: int
    delegated_nodes: int
    sqnr: dict[str, float]
    agreement: dict[str, str]
    source_right: int
    right: int
    known: int
    same: int
    answers: int

    @property
    def good(self) -> bool:
        """Return whether it isn't judged, or passed and answers like its module."""
        kept = self.same >= LEAST_KEPT * self.answers
        right = self.right >= LEAST_KEPT * self.source_right
        return self.verdict == "not judged" or (self.verdict == "passed" and kept and right)


class BuildError(Exception):
    """doit failed; the message is the last of its output."""


def models() -> list[str]:
    """Return the names of all models, sorted."""
    return sorted(TASKS)


def build(model: str) -> list[Record]:
    """Build and validate the packages of a model, and return a record of each.

    Raises:
        BuildError: one of them failed.
    """
    packages = [f"{model}-{precision}" for precision in PRECISIONS]
    command = [sys.executable, "-m", "doit", *(f"validate:{package}" for package in packages)]
    root = HERE.parents[1]
    search = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        command, cwd=HERE, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True
    )
    if run.returncode:
        raise BuildError(f"{' '.join(command[1:])}:\n{(run.stdout + run.stderr)[-3000:]}")
    task = TASKS[model]
    source = task.answer(task.source())
    return [_record(model, package, source) for package in packages]


def _record(model: str, package: str, source: Answers) -> Record:
    folder = HERE / "build" / package
    manifest = json.loads((folder / "manifest.json").read_text())
    report = json.loads((folder / "report.json").read_text())
    answers = TASKS[model].answer(load_package(folder / f"{package}.pte"))
    programs = [method for method in report["methods"] if method["kind"] == "program"]
    delegation = [method["delegation"] for method in manifest["methods"].values()]
    return Record(
        package=package,
        model=model,
        verdict=report["verdict"],
        size=sum(file["size"] for file in manifest["files"].values()),
        nodes=sum(counts["nodes"] for counts in delegation),
        delegated_nodes=sum(counts["delegated_nodes"] for counts in delegation),
        sqnr={method["method"]: _worst_sqnr(method) for method in programs},
        agreement={method["method"]: _agreement(method) for method in programs},
        source_right=int(source.right.sum()),
        right=int(answers.right.sum()),
        known=len(source.right),
        same=source.same(answers),
        answers=len(source.values),
    )


def _example_figures(method: dict[str, Any]) -> list[dict[str, Any]]:
    runs = [run for run in method["runs"] if run["origin"].startswith("example")]
    return [output for run in runs for output in run["outputs"]]


def _worst_sqnr(method: dict[str, Any]) -> float:
    """Return the lowest SQNR of a method's outputs on its examples."""
    figures = [float(output["sqnr_db"]) for output in _example_figures(method)]
    return min((figure for figure in figures if not math.isnan(figure)), default=math.inf)


def _agreement(method: dict[str, Any]) -> str:
    """Return for how many rows of the examples the highest values are at the same index."""
    figures = _example_figures(method)
    rows = sum(int(output["rows"]) for output in figures)
    return f"{sum(int(output['agreeing']) for output in figures)} of {rows}" if rows else ""


def read_records() -> dict[str, Any]:
    """Return the records of earlier builds, keyed by package."""
    return json.loads(RECORDS.read_text()) if RECORDS.exists() else {}


def keep(record: Record) -> None:
    """Save a record, replacing an earlier one of the same package."""
    records = {**read_records(), record.package: asdict(record)}
    RECORDS.parent.mkdir(exist_ok=True)
    RECORDS.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
