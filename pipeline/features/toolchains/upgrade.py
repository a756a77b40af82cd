"""`doit upgrade`: builds packages with another toolchain, and compares them with the current ones.

Both builds are command lines of doit, each in the Python of its toolchain and with the same store.
The current packages stay in `build/`; the others have their own folder in it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.cli.grammar import quoted
from pipeline.cli.verbs import known_packages
from pipeline.features.toolchains.changes import (
    BROKEN,
    PackageChanges,
    compare_peaks,
    find_changes,
)
from pipeline.features.toolchains.driver import make_command, make_environment
from pipeline.features.toolchains.environments import find_python, probe
from pipeline.features.toolchains.routing import HERE
from pipeline.features.toolchains.runtimes import describe_package, run_everywhere
from pipeline.features.toolchains.summary import write_markdown, write_text
from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.report.events import RUN
from pipeline.report.records import read_fitting
from pipeline.store.errors import PipelineError, plural
from pipeline.store.files import (
    CONTENTS,
    MANIFEST,
    REPORT,
    read_record,
    write_atomically,
)
from pipeline.store.workspace import BUILD_VARIABLE, Workspace

_SHOWN = ("executorch", "torch", "torchao", "flatbuffers", "numpy")
_BUILD_FOLDER = ".toolchains"  # no package can have this name
_DATABASE = ".doit.sqlite3"


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Build and validate packages with both toolchains; yield the lines of the report.

    Args:
        words: a toolchain, and packages, by default all.

    Raises:
        PipelineError: there is no such toolchain, or a package no longer lowers or passes with it.
    """
    if not words:
        raise PipelineError("name a toolchain, as in `doit upgrade et15`")
    name, *patterns = words
    packages = known_packages(plan, patterns)
    workspace = plan.workspace
    python = find_python(workspace.root, name)
    folder = workspace.build / _BUILD_FOLDER / name
    yield from _build_both(plan, name, python, folder, packages)
    versions = _compare_versions(name, python)
    changes = []
    for package in packages:
        sides = [read_side(plan, base, package) for base in (workspace.build, folder)]
        changes.append(_compare(package, sides, name))
    runs = run_everywhere(
        workspace, _find_builds(workspace.build, folder, changes, name)
    )
    page = workspace.build / f"upgrade-{name}.md"
    everywhere = compare_peaks(changes)
    text = "\n".join(write_markdown(name, versions, changes, runs, everywhere)) + "\n"
    write_atomically(page, text.encode(), workspace.build)
    yield from write_text(name, versions, changes, runs, everywhere)
    yield f"report: {page.relative_to(workspace.root)}"
    broken = [change.package for change in changes if change.rank == BROKEN]
    if broken:
        number = plural(len(broken), "package")
        raise PipelineError(f"{number} no longer build or pass: {', '.join(broken)}")


def _build_both(
    plan: Plan, name: str, python: Path, folder: Path, packages: Sequence[str]
) -> Iterator[str]:
    """Build and validate packages with the current toolchain, and then with the other."""
    tasks = [f"validate:{quoted(package)}" for package in packages]
    yield f"building {plural(len(packages), 'package')} with the current toolchain"
    _run_doit(make_command(Path(sys.executable), tasks), None, plan.workspace.root)
    folder.mkdir(parents=True, exist_ok=True)
    environment = make_environment(name, python)
    environment[BUILD_VARIABLE] = str(folder)
    yield f"building {plural(len(packages), 'package')} with {name}"
    words = ["--db-file", str(folder / _DATABASE), *tasks]
    _run_doit(make_command(python, words), environment, plan.workspace.root)


def _run_doit(
    command: Sequence[str], environment: Mapping[str, str] | None, root: Path
) -> None:
    """Run a command line of doit. Raises PipelineError if it ends without building.

    The build's records say which packages failed.
    """
    sys.stdout.flush()
    status = subprocess.run(command, env=environment, cwd=root, check=False).returncode
    if status > 1 or status < 0:
        raise PipelineError("interrupted, or nothing could be built; see above")


def _find_builds(
    build: Path, folder: Path, changes: Sequence[PackageChanges], name: str
) -> list[dict[str, Any]]:
    """Return the builds of packages to ask runtimes about: one per package if both are equal."""
    builds = []
    for change in changes:
        if (build / change.package / MANIFEST).exists():
            builds.append(describe_package(build, change.package))
        if change.bytes and change.bytes != "equal":
            title = f"{change.package} of {name}"
            builds.append(describe_package(folder, change.package, title))
    return builds


def _compare_versions(name: str, python: Path) -> dict[str, tuple[str, str]]:
    """Return the versions that differ between both toolchains, by distribution."""
    present = probe(Path(sys.executable), HERE)["distributions"]
    others = probe(python, name)["distributions"]
    versions = {}
    for distribution in _SHOWN:
        pair = (
            present.get(distribution, "not installed"),
            others.get(distribution, "not installed"),
        )
        if pair[0] != pair[1]:
            versions[distribution] = pair
    return versions


def read_side(plan: Plan, folder: Path, package: str) -> dict[str, Any]:
    """Return the records of a package in a folder of builds, and the errors of its run."""
    records = {
        name: read_fitting(folder / package / name)
        for name in (MANIFEST, CONTENTS, REPORT)
    }
    errors = []
    for action in (read_record(folder / RUN) or {}).get("actions", ()):
        is_of_model = not action["package"] and action["model"] == plan.model(package)
        if action["error"] and (action["package"] == package or is_of_model):
            errors.append(action)
    lowering_failed = any(action["kind"] != "validate" for action in errors)
    side: dict[str, Any] = {
        "errors": errors,
        "build": None,
        "report": None,
        "cost": (0.0, 0),
    }
    manifest = records[MANIFEST]
    if manifest is None or lowering_failed:
        return side
    side["build"] = _read_build(folder / package / MANIFEST)
    side["contents"] = records[CONTENTS]
    side["report"] = records[REPORT]
    side["cost"] = _add_costs(plan.workspace, manifest)
    return side


def _read_build(manifest: Path) -> Any:
    for build in call_all("read_build", manifest):
        return build
    lack = 'this installation has no feature "gates", which reads the figures of builds'
    raise PipelineError(lack)


def _add_costs(workspace: Workspace, manifest: Mapping[str, Any]) -> tuple[float, int]:
    """Return the seconds that a package's units took to compile, and their greatest memory peak."""
    seconds, peak = 0.0, 0
    for unit in manifest["objects"].values():
        entry = workspace.store.get(unit["action"])
        if entry is not None:
            seconds += entry.seconds
            peak = max(peak, entry.peak)
    return seconds, peak


def _compare(
    package: str, sides: Sequence[Mapping[str, Any]], name: str
) -> PackageChanges:
    """Compare both builds of a package, with the table that another feature makes of them."""
    changes = find_changes(package, sides[0], sides[1])
    builds = [side["build"] for side in sides]
    if None not in builds and changes.bytes != "equal":
        for comparison in call_all("compare_builds", package, *builds, name):
            lines = list(comparison.markdown())
            changes.details = lines[
                1:
            ]  # without the headline, which repeats the package
    return changes
