"""Loads and runs built packages on the runtime of every toolchain that is set up.

The runtime of each is that of its environment's Python. The present environment is one of them, and
the outputs of the others are compared with its own on the same inputs.
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
_TIMED_OUT = 124  # as coreutils' `timeout` has it
YES = "yes"
_NUMPY_RUNTIME = "executorch-numpy-runtime"
_TOLERANCE = (
    1e-3  # relative to the greatest value, above which numbers are worth a word
)
_MISSING = re.compile(
    r"Missing operator: \[\d+\] (?P<operator>[\w:.]+)|Backend (?P<backend>\w+) is not registered"
)
# By package and runtime, whether it runs there.
Table = dict[str, dict[str, str]]


def describe_package(folder: Path, package: str, title: str = "") -> dict[str, Any]:
    """Return the files and methods of a package that is built in a folder, and what the table calls
    it. Raises PipelineError."""
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
    """Return by package and runtime, such as `1.5.1 (et15)`, whether it runs there, or why not."""
    table: Table = {package["package"]: {} for package in packages}
    present: Answers = {}
    for name in dict.fromkeys((present_toolchain(), *_others(workspace.root))):
        runtime, answers = _ask_toolchain(workspace, name, packages)
        present = present or answers
        for package in packages:
            table[package["package"]][runtime] = judge(package, answers, present)
    return table


def _others(root: Path) -> list[str]:
    """Return the toolchains that this process can ask beside its own."""
    default = [HERE] if DEFAULT_PYTHON in os.environ else []
    return [*default, *read_toolchains(root)]


def _find_python(root: Path, name: str) -> Path:
    """Return the Python of a toolchain. Raises PipelineError where there is none."""
    if name == present_toolchain():
        return Path(sys.executable)
    if name == HERE:
        return Path(os.environ[DEFAULT_PYTHON])
    return locate(root, name, read_toolchains(root)[name])


def _ask_toolchain(
    workspace: Workspace, name: str, packages: Packages
) -> tuple[str, Answers]:
    """Return what the table calls a toolchain's runtime, and what it says of packages: what the
    store has of the same files on the same distributions, it is not asked again."""
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
    """Return what the runtime of a toolchain refuses of a built package, by method; with "" for the
    method, why that toolchain can't be asked."""
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
        for key in methods_of(remaining[place]):
            answers.setdefault(key, {"error": crash, CRASH: True})
        remaining = remaining[place + 1 :]
    return answers


def _run_script(python: Path, packages: Packages) -> subprocess.CompletedProcess[str]:
    """Run packages in a process of another Python; one that does not end is ended."""
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
        output = error.stdout or b""  # bytes, though the pipe is of text
        text = output if isinstance(output, str) else output.decode(errors="replace")
        return subprocess.CompletedProcess(error.cmd, _TIMED_OUT, text, "")


def _fail(package: Mapping[str, Any], error: str) -> Answers:
    """Return the same error as the answer for each method of a package."""
    return {key: {"error": error, CRASH: True} for key in methods_of(package)}


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
    """Return the greatest difference of two outputs, relative to the greatest value."""
    if len(values) != len(expected):
        return float("inf")
    scale = max(map(abs, expected), default=0.0) or 1.0
    differences = [abs(x - y) for x, y in zip(values, expected, strict=True)]
    return max(differences, default=0.0) / scale
