"""`doit runtimes`: loads and runs built packages on the runtime of every toolchain that is set up.

The runtime of each is that of its environment's Python. The present environment is one of them, and
the outputs of the others are compared with its own on the same inputs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.cli.columns import columns
from pipeline.cli.verbs import known_packages
from pipeline.features.toolchains.environments import locate, probe
from pipeline.features.toolchains.routing import HERE, read_toolchains
from pipeline.plan.plan import Plan
from pipeline.report.records import read_fitting
from pipeline.store.errors import PipelineError
from pipeline.store.files import MANIFEST, write_atomically
from pipeline.store.workspace import Workspace

RUNTIMES = "runtimes.json"
_SCRIPT = Path(__file__).with_name("run_packages.py")
_SECONDS = 600
_TIMED_OUT = 124  # as coreutils' `timeout` has it
_YES = "yes"
_NUMPY_RUNTIME = "executorch-numpy-runtime"
_TOLERANCE = (
    1e-3  # relative to the greatest value, above which numbers are worth a word
)
_MISSING = re.compile(
    r"Missing operator: \[\d+\] (?P<operator>[\w:.]+)|Backend (?P<backend>\w+) is not registered"
)
# What a runtime is asked for: packages, with their files and methods.
Packages = Sequence[Mapping[str, Any]]
# By package and method, what a runtime said of it.
Answers = dict[tuple[str, str], dict[str, Any]]
# By package and runtime, whether it runs there.
Table = dict[str, dict[str, str]]


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Run packages, by default all, on all runtimes; yield a table, a line for each package.

    Raises:
        PipelineError: a package is not built, or its toolchain's environment can't be asked.
    """
    packages = []
    for package in known_packages(plan, words):
        packages.append(describe_package(plan.workspace.build, package))
    table = run_everywhere(plan.workspace.root, packages)
    write_table(plan.workspace, table)
    runtimes = list(next(iter(table.values()), {}))
    rows = [("", *runtimes)]
    for package, outcomes in table.items():
        rows.append((package, *outcomes.values()))
    yield from columns(rows)


def describe_package(folder: Path, package: str, title: str = "") -> dict[str, Any]:
    """Return the files and methods of a package that is built in a folder, and what the table calls
    it. Raises PipelineError."""
    manifest = read_fitting(folder / package / MANIFEST)
    if manifest is None:
        raise PipelineError(f"{package}: is not built; run `doit lower:{package}`")
    paths = [folder / package / name for name in sorted(manifest["files"])]
    [pte] = [str(path) for path in paths if path.suffix == ".pte"]
    ptds = [str(path) for path in paths if path.suffix == ".ptd"]
    methods = list(manifest["methods"])
    return {"package": title or package, "pte": pte, "ptds": ptds, "methods": methods}


def run_everywhere(root: Path, packages: Packages) -> Table:
    """Return by package and runtime, such as `1.5.1 (et15)`, whether it runs there, or why not."""
    table: Table = {package["package"]: {} for package in packages}
    present: Answers = {}
    for name in (HERE, *read_toolchains(root)):
        runtime, answers = _ask_toolchain(root, name, packages)
        present = present or answers
        for package in packages:
            table[package["package"]][runtime] = judge(package, answers, present)
    return table


def _ask_toolchain(root: Path, name: str, packages: Packages) -> tuple[str, Answers]:
    """Return what the table calls a toolchain's runtime, and what it says of packages."""
    try:
        python = Path(sys.executable)
        if name != HERE:
            python = locate(root, name, read_toolchains(root)[name])
        versions = probe(python, name)["distributions"]
    except PipelineError as error:
        answers: Answers = {}
        for package in packages:
            answers |= _fail(package, str(error))
        return name, answers
    return f"{_describe_version(versions)} ({name})", ask(python, packages)


def _describe_version(versions: Mapping[str, str]) -> str:
    if "executorch" in versions:
        return versions["executorch"]
    if _NUMPY_RUNTIME in versions:
        return f"{_NUMPY_RUNTIME} {versions[_NUMPY_RUNTIME]}"
    return "no executorch"


def find_refusals(workspace: Workspace, toolchain: str, package: str) -> dict[str, str]:
    """Return what the runtime of a toolchain refuses of a built package, by method; with "" for the
    method, why that toolchain can't be asked."""
    if toolchain not in read_toolchains(workspace.root):
        return {"": f"no toolchain '{toolchain}' in the settings"}
    described = describe_package(workspace.build, package)
    _, answers = _ask_toolchain(workspace.root, toolchain, [described])
    refusals = {}
    for key in _keys(described):
        facts = answers.get(key, {"error": "was not run"})
        if "error" in facts:
            refusals[key[1]] = _explain(facts)
    return refusals


def ask(python: Path, packages: Packages) -> Answers:
    """Return what the runtime of a Python says of packages. One that ends its process is told of,
    and the others are run again in a new one."""
    answers: Answers = {}
    remaining = list(packages)
    while remaining:
        ended = _run_script(python, remaining)
        begun = _read_answers(ended.stdout, answers)
        if ended.returncode == 0:
            break
        output = ended.stderr.strip().splitlines()
        if begun is None:  # it could not import its runtime
            error = output[-1] if output else f"exit status {ended.returncode}"
            for package in remaining:
                answers |= _fail(package, error)
            break
        if ended.returncode == _TIMED_OUT:
            crash = f"it did not end within {_SECONDS} s"
        else:
            crash = f"its process ended, exit status {ended.returncode}"
        names = [package["package"] for package in remaining]
        place = names.index(begun[0])
        for key in _keys(remaining[place]):
            answers.setdefault(key, {"error": crash})
        remaining = remaining[place + 1 :]
    return answers


def _run_script(python: Path, packages: Packages) -> subprocess.CompletedProcess[str]:
    """Run packages in a process of another Python; one that does not end is ended."""
    try:
        return subprocess.run(
            [python, "-I", _SCRIPT],
            input=json.dumps(packages),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""  # bytes, though the pipe is of text
        text = output if isinstance(output, str) else output.decode(errors="replace")
        return subprocess.CompletedProcess(error.cmd, _TIMED_OUT, text, "")


def _keys(package: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(package["package"], method) for method in package["methods"]]


def _fail(package: Mapping[str, Any], error: str) -> Answers:
    """Return the same error as the answer for each method of a package."""
    return {key: {"error": error} for key in _keys(package)}


def _read_answers(output: str, answers: Answers) -> tuple[str, str] | None:
    """Add the answers of a process; return the package and method that it began last."""
    begun = None
    for line in output.splitlines():
        if not line.startswith("{"):  # what a library prints
            continue
        facts = json.loads(line)
        begun = (facts.pop("package"), facts.pop("method"))
        if facts:
            answers[begun] = facts
    return begun


def judge(package: Mapping[str, Any], answers: Answers, present: Answers) -> str:
    """Return "yes" where all methods of a package run and give what the present runtime gives; or
    what is missing, or how far numbers are from it."""
    outcomes = []
    for key in _keys(package):
        facts = answers.get(key, {"error": "was not run"})
        if "error" in facts:
            outcomes.append(f"no: {key[1]}: {_explain(facts)}")
        elif facts["digest"] != present.get(key, {}).get("digest", facts["digest"]):
            distance = _find_distance(facts["values"], present[key]["values"])
            if not distance <= _TOLERANCE:
                outcomes.append(f"yes, {key[1]} with other numbers ({distance:.1g})")
    failures = [outcome for outcome in outcomes if outcome.startswith("no")]
    return next(iter(failures or outcomes), _YES)


def _explain(facts: Mapping[str, Any]) -> str:
    """Return the operator or backend that a runtime lacks, or the message of its error."""
    for line in facts.get("log", ()):
        match = _MISSING.search(line)
        if match:
            if match["operator"]:
                return f"operator {match['operator']}"
            return f"backend {match['backend']}"
    return str(facts["error"])


def _find_distance(values: Sequence[float], expected: Sequence[float]) -> float:
    """Return the greatest difference of two outputs, relative to the greatest value."""
    if len(values) != len(expected):
        return float("inf")
    scale = max(map(abs, expected), default=0.0) or 1.0
    differences = [abs(x - y) for x, y in zip(values, expected, strict=True)]
    return max(differences, default=0.0) / scale


def write_table(workspace: Workspace, table: Mapping[str, Mapping[str, str]]) -> None:
    """Keep the table in `build/`, with the rows of packages that were not run this time."""
    path = workspace.build / RUNTIMES
    rows = {**read_table(workspace), **table}
    text = json.dumps(rows, indent=1) + "\n"
    write_atomically(path, text.encode(), workspace.build)


def read_table(workspace: Workspace) -> dict[str, dict[str, str]]:
    """Return the table that was kept, {} where there is none."""
    try:
        rows: dict[str, dict[str, str]] = json.loads(
            (workspace.build / RUNTIMES).read_text()
        )
    except (OSError, ValueError):
        return {}
    return rows
