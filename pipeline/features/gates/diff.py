"""`doit diff`: packages as they are built, beside the accepted, other builds or a revision."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.cli.columns import columns
from pipeline.cli.grammar import fit_packages
from pipeline.cli.verbs import find_path, known_packages
from pipeline.features.gates.baseline import read_baseline
from pipeline.features.gates.comparison import Comparison, compare_builds
from pipeline.features.gates.revisions import find_commit, read_revision
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status
from pipeline.report.records import fits_name, read_fitting
from pipeline.store.digest import Digest
from pipeline.store.entries import ActionEntry
from pipeline.store.errors import PipelineError, SourceError, did_you_mean, plural
from pipeline.store.files import CONTENTS, MANIFEST, REPORT
from pipeline.store.maintenance import earlier_keys
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import BASELINES
from pipeline.validate.figures import Build, make_build, read_build


class Other(NamedTuple):
    """A build that a package is compared with, its name, and notes on it."""

    build: Build
    name: str
    notes: tuple[str, ...] = ()


# Returns the other build of a package. Raises PipelineError where there is none.
Find = Callable[[str], Other]


def run(plan: Plan, words: Sequence[str], markdown: bool = False) -> Iterator[str]:
    """Compare packages, and yield lines for each.

    Args:
        words: packages, by default all, and at most one other: a manifest, or a folder with some;
            or a revision of git's. By default the accepted baselines.

    Raises:
        PipelineError: for those that can't be compared, after the others were; a line for each.
    """
    known_packages(plan, ())  # or there is nothing to compare
    fitting = {word: fit_packages(plan, word) for word in words}
    packages = [package for found in fitting.values() for package in found]
    others = [word for word, found in fitting.items() if not found]
    if len(others) > 1:
        known = did_you_mean(others[1], plan.packages)
        raise PipelineError(f"'{others[0]}' and '{others[1]}' are no packages; {known}")
    with ExitStack() as stack:
        find, packages = _choose_finder(plan, "".join(others), packages, stack)
        refused = list[str]()
        compared = list[Comparison]()
        for package in packages:
            try:
                compared.append(_compared(plan, package, find))
            except PipelineError as error:
                refused += error.lines
        if markdown:
            yield _verdict(compared, len(packages))
        for number, comparison in enumerate(compared):
            if markdown or (number and not comparison.same):
                yield ""
            yield from comparison.markdown() if markdown else _text(comparison)
        if refused:
            raise PipelineError(*refused)


def _verdict(compared: Sequence[Comparison], asked: int) -> str:
    """Return the heading of a comparison of packages: how many changed, and how many could not be
    compared."""
    changed = sum(not each.same for each in compared)
    said = f"## {changed or 'None'} of {plural(asked, 'package')} changed"
    lacking = asked - len(compared)
    if lacking:
        return f"{said}, {lacking} not compared"
    return said


def _text(comparison: Comparison) -> Iterator[str]:
    yield comparison.verdict
    for note in comparison.notes:
        yield f"  {note}"
    if not comparison.same:
        yield from columns(
            [("", "before", "after", "change"), *comparison.rows()], right=(1, 2)
        )


def _compared(plan: Plan, package: str, find: Find) -> Comparison:
    new = read_build(plan.workspace.package(package) / MANIFEST)
    if new is None:
        raise PipelineError(f"{package}: is not built; run `doit lower:{package}`")
    other = find(package)
    notes = list(other.notes)
    if not plan.problems(package):
        status = link_status(plan, package)
        if not status.current:
            notes.append(
                f"build/{package} is not what its sources ask for: {status.reason}"
            )
    if note := _unknown_numerics(plan, package, new):
        notes.append(note)
    return compare_builds(package, other.build, new, other.name, notes)


def _unknown_numerics(plan: Plan, package: str, build: Build) -> str:
    """Return a note on methods whose numerics are not known; "" where all are."""
    unknown = [
        name for name, method in build.figures.methods.items() if method.sqnr_db is None
    ]
    report = read_fitting(plan.workspace.package(package) / REPORT) or {}
    assert build.manifest is not None
    files = {name: file["digest"] for name, file in build.manifest["files"].items()}
    if unknown and report.get("files") != files:
        return f"numerics are left out: build/{package} has not been validated as it is"
    if unknown:
        return f"numerics are left out of what did not run: {', '.join(unknown)}"
    return ""


# What to compare with


def _choose_finder(
    plan: Plan, against: str, packages: list[str], stack: ExitStack
) -> tuple[Find, list[str]]:
    """Return how to find the other side, and the packages that are meant."""
    if not against:
        return lambda package: _find_accepted(plan, package), packages or list(
            plan.packages
        )
    path = find_path(plan, against)
    if path.exists():
        return _find_in_folder(plan, path, against, packages)
    if (commit := find_commit(plan.workspace.root, against)) is None:
        known = did_you_mean(against, plan.packages)
        raise PipelineError(
            f"'{against}' is no package, file or revision of git's; {known}"
        )
    root = stack.enter_context(read_revision(plan.workspace.root, commit))
    there = Plan(replace(plan.workspace, root=root))
    there.trust_last_exports()
    name = against if commit.startswith(against) else f"{against} ({commit[:12]})"
    wanted = packages or [p for p in plan.packages if p in there.packages]
    return lambda package: _find_at_revision(there, package, name), wanted


def _find_accepted(plan: Plan, package: str) -> Other:
    """Return the accepted build, with all that the store still knows of it."""
    figures = read_baseline(plan.workspace.baseline(package))
    if figures is None:
        what = f"there is no {BASELINES}/{package}.yaml"
        raise PipelineError(
            f"{package}: {what}; `doit baseline {package}` accepts a build"
        )
    name = "the accepted baseline"
    now = read_build(plan.workspace.package(package) / MANIFEST)
    if now is not None and now.figures.digest == figures.digest:
        return Other(Build(figures), name)
    for action, key in earlier_keys(plan.workspace.store, "link"):
        if key["package"] != package:
            continue
        found = _load_build(plan.workspace.store, action)
        if found is not None and found.figures.digest == figures.digest:
            # Their numerics may be of another machine.
            accepted = {"methods": figures.methods}
            return Other(
                replace(found, figures=found.figures.model_copy(update=accepted)), name
            )
    note = "the build that was accepted is not in the store, so options are left out"
    return Other(Build(figures), name, (note,))


def _load_build(store: Store, link: Digest, report: Any = None) -> Build | None:
    """Return what the store knows of a package that was linked."""
    entry = store.get(link)
    records = _load_records(store, entry, MANIFEST, CONTENTS) if entry else {}
    manifest = records.get(MANIFEST)
    if manifest:
        return make_build(manifest, records.get(CONTENTS), report)
    return None


def _load_records(store: Store, entry: ActionEntry, *names: str) -> dict[str, Any]:
    """Return those of the records that a result has; none where one of them can't be read, or is no
    record of its name."""
    files = entry.result["files"]
    try:
        found = {}
        for name in names:
            if name in files:
                found[name] = json.loads(store.read(files[name]))
    except (MissingBlobError, ValueError, RecursionError):
        return {}
    if all(fits_name(*each) for each in found.items()):
        return found
    return {}


def _find_in_folder(
    plan: Plan, path: Path, against: str, packages: list[str]
) -> tuple[Find, list[str]]:
    """Find builds by a manifest, the folder of a package, or a folder with such folders."""
    if path.is_dir() and not (path / MANIFEST).exists():
        here = [p for p in plan.packages if (path / p / MANIFEST).exists()]
        if not here and not packages:
            raise PipelineError(
                f"{against}: holds no {MANIFEST}, nor a folder of a package"
            )
        return lambda package: _read(
            path / package / MANIFEST, against
        ), packages or here
    other = _read(path / MANIFEST if path.is_dir() else path, against)
    assert other.build.manifest is not None
    return lambda package: other, packages or [str(other.build.manifest["package"])]


def _read(path: Path, name: str) -> Other:
    if (build := read_build(path)) is None:
        raise PipelineError(f"{name}: {path.name} is no manifest that can be read")
    return Other(build, name)


def _find_at_revision(there: Plan, package: str, name: str) -> Other:
    """Find the build of a revision in the store, or its baseline in the revision; build nothing."""
    reason = f"{name} has no such package"
    if package in there.packages:
        build, reason = _find_stored(there, package)
        if build is not None:
            return Other(build, name)
        figures = read_baseline(there.workspace.baseline(package))
        if figures is not None:
            note = f"{reason} at {name}, so this is the baseline of that revision"
            return Other(Build(figures), f"the baseline of {name}", (note,))
        reason += f" at {name}, and it has no {BASELINES}/{package}.yaml; check it out and run"
        reason += f" `doit validate:{package}` with this store"
    raise PipelineError(f"{package}: {reason}")


def _find_stored(there: Plan, package: str) -> tuple[Build | None, str]:
    """Return the build that the store has of a package, or why there is none."""
    if problems := there.problems(package):
        return None, f"its config has mistakes ({problems[0]})"
    store = there.workspace.store
    try:
        link = there.link(package)
        methods = there.methods(package)
    except SourceError as error:
        return None, f"its model can't be read ({error})"
    if link is None or methods is None:
        return None, f"its model {there.model(package)} is not exported in this store"
    entry = store.get(link.digest)
    build = _load_build(store, link.digest)
    if entry is None or build is None:
        return None, "it is not in this store as the present tools would build it"
    files = {}
    for n, blob in entry.result["files"].items():
        if n.endswith((".pte", ".ptd")):
            files[n] = blob
    proved = store.get(there.make_validation(package, files, methods).digest)
    report = None
    if proved:
        report = _load_records(store, proved, REPORT).get(REPORT)
    return _load_build(store, link.digest, report) or build, ""
