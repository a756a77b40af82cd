"""Loads and runs built packages on the runtime of every toolchain that is set up.

A toolchain's runtime belongs to its environment's Python. The present environment is one of the
toolchains, and the outputs of the others are compared with its outputs on the same inputs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.features.toolchains.environments import locate, probe
from pipeline.features.toolchains.kept_answers import (
    CRASH,
    SCRIPT,
    Answers,
    KeptAnswers,
    Packages,
    methods_of,
)
from pipeline.features.toolchains.routing import (
    DEFAULT_PYTHON,
    HERE,
    present_toolchain,
    read_toolchains,
)
from pipeline.report.records import read_fitting
from pipeline.store.errors import PipelineError
from pipeline.store.files import MANIFEST
from pipeline.store.workspace import Workspace

_SECONDS = 600
_TIMED_OUT = 124  # the exit status of coreutils' `timeout`
YES = "yes"
_NUMPY_RUNTIME = "executorch-numpy-runtime"
_TOLERANCE = 1e-3  # relative to the greatest value; greater differences are reported
_MISSING = re.compile(
    r"Missing operator: \[\d+\] (?P<operator>[\w:.]+)|Backend (?P<backend>\w+) is not registered"
)
# For each package and runtime, whether the package runs there.
Table = dict[str, dict[str, str]]


def describe_package(folder: Path, package: str, title: str = "") -> dict[str, Any]:
    """Return the files and methods of a package built in a folder, and its title in the table.

    Raises PipelineError if it isn't built or has no `.pte` file.
    """
    manifest = read_fitting(folder / package / MANIFEST)
    if manifest is None:
        raise PipelineError(f"{package}: is not built; run `doit lower:{package}`")
    paths = [folder / package / name for name in sorted(manifest["files"])]
    ptes = [str(path) for path in paths if path.suffix == ".pte"]
    if len(ptes) != 1:
        raise PipelineError(f"{package}: its {MANIFEST} names no .pte file")
    ptds = [str(path) for path in paths if path.suffix == ".ptd"]
    methods = list(manifest["methods"])
    return {
        "package": title or package,
        "pte": ptes[0],
        "ptds": ptds,
        "methods": methods,
    }


def run_everywhere(workspace: Workspace, packages: Packages) -> Table:
    """Return whether each package runs on each runtime, such as `1.5.1 (et15)`, or why not."""
    table: Table = {package["package"]: {} for package in packages}
    present: Answers = {}
    for name in dict.fromkeys((present_toolchain(), *_others(workspace.root))):
        runtime, answers = _ask_toolchain(workspace, name, packages)
        present = present or answers
        for package in packages:
            table[package["package"]][runtime] = judge(package, answers, present)
    return table


def _others(root: Path) -> list[str]:
    """Return the other toolchains that this process can ask."""
    default = [HERE] if DEFAULT_PYTHON in os.environ else []
    return [*default, *read_toolchains(root)]


def _find_python(root: Path, name: str) -> Path:
    """Return the Python of a toolchain. Raises PipelineError if there is none."""
    if name == present_toolchain():
        return Path(sys.executable)
    if name == HERE:
        return Path(os.environ[DEFAULT_PYTHON])
    return locate(root, name, read_toolchains(root)[name])


def _ask_toolchain(
    workspace: Workspace, name: str, packages: Packages
) -> tuple[str, Answers]:
    """Return the title of a toolchain's runtime in the table, and its answers on packages.

    The runtime isn't asked again about files for which the store has answers of the same
    distributions.
    """
    try:
        python = _find_python(workspace.root, name)
        environment = probe(python, name)
    except PipelineError as error:
        answers: Answers = {}
        for package in packages:
            answers |= _fail(package, str(error))
        return name, answers
    kept = KeptAnswers(workspace.store, environment)
    answers, unknown = kept.find(packages)
    answers |= ask(python, unknown)
    kept.keep(unknown, answers)
    return f"{_describe_version(environment['distributions'])} ({name})", answers


def _describe_version(versions: Mapping[str, str]) -> str:
    if "executorch" in versions:
        return versions["executorch"]
    if _NUMPY_RUNTIME in versions:
        return f"{_NUMPY_RUNTIME} {versions[_NUMPY_RUNTIME]}"
    return "no executorch"


def find_refusals(workspace: Workspace, toolchain: str, package: str) -> dict[str, str]:
    """Return why the runtime of a toolchain refuses methods of a built package, by method.

    If the toolchain can't be asked, "" stands for the method.
    """
    if toolchain not in read_toolchains(workspace.root):
        return {"": f"no toolchain '{toolchain}' in the settings"}
    described = describe_package(workspace.build, package)
    _, answers = _ask_toolchain(workspace, toolchain, [described])
    refusals = {}
    for key in methods_of(described):
        facts = answers.get(key, {"error": "was not run"})
        if "error" in facts:
            refusals[key[1]] = _explain(facts)
    return refusals


def ask(python: Path, packages: Packages) -> Answers:
    """Return the answers of a Python's runtime on packages.

    If a package ends the process, its answers say so, and the packages after it run in a new
    process.
    """
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
        for key in methods_of(remaining[place]):
            answers.setdefault(key, {"error": crash, CRASH: True})
        remaining = remaining[place + 1 :]
    return answers


def _run_script(python: Path, packages: Packages) -> subprocess.CompletedProcess[str]:
    """Run packages in a process of another Python, which is ended after a time limit."""
    try:
        return subprocess.run(
            [python, "-I", SCRIPT],
            input=json.dumps(packages),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""  # bytes, even from a text pipe
        text = output if isinstance(output, str) else output.decode(errors="replace")
        return subprocess.CompletedProcess(error.cmd, _TIMED_OUT, text, "")


def _fail(package: Mapping[str, Any], error: str) -> Answers:
    """Return answers with the same error for each method of a package."""
    return {key: {"error": error, CRASH: True} for key in methods_of(package)}


def _read_answers(output: str, answers: Answers) -> tuple[str, str] | None:
    """Add the answers of a process, and return the package and method that it began last."""
    begun = None
    for line in output.splitlines():
        if not line.startswith("{"):  # the output of a library
            continue
        facts = json.loads(line)
        begun = (facts.pop("package"), facts.pop("method"))
        if facts:
            answers[begun] = facts
    return begun


def judge(package: Mapping[str, Any], answers: Answers, present: Answers) -> str:
    """Return "yes" if all methods of a package run and match the outputs of the present runtime.

    Otherwise return what is missing, or how far outputs are from the present runtime's.
    """
    outcomes = []
    for key in methods_of(package):
        facts = answers.get(key, {"error": "was not run"})
        if "error" in facts:
            outcomes.append(f"no: {key[1]}: {_explain(facts)}")
        elif facts["digest"] != present.get(key, {}).get("digest", facts["digest"]):
            distance = _find_distance(facts["values"], present[key]["values"])
            if not distance <= _TOLERANCE:
                outcomes.append(f"yes, {key[1]} with other numbers ({distance:.1g})")
    failures = [outcome for outcome in outcomes if outcome.startswith("no")]
    return next(iter(failures or outcomes), YES)


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
    """Return the greatest difference between outputs, relative to the greatest expected value."""
    if len(values) != len(expected):
        return float("inf")
    scale = max(map(abs, expected), default=0.0) or 1.0
    differences = [abs(x - y) for x, y in zip(values, expected, strict=True)]
    return max(differences, default=0.0) / scale
