"""The references of `doit diff`: baselines, builds in a folder, or the builds of a revision.

A reference lists its packages and finds its build of each; it builds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.cli.verbs import find_path
from pipeline.features.gates.baseline import read_baseline
from pipeline.features.gates.figures import make_build, read_build
from pipeline.features.gates.revisions import (
    MissingFolderError,
    find_commit,
    read_revision,
)
from pipeline.moments import earlier_keys
from pipeline.plan.plan import Plan
from pipeline.report.records import fits_name
from pipeline.store.digest import Digest
from pipeline.store.entries import ActionEntry
from pipeline.store.errors import PipelineError, SourceError
from pipeline.store.files import CONTENTS, MANIFEST, REPORT
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import BASELINES

# A build to compare a package with, as returned by `read_build`; its name; and notes on it.
ReferenceBuild = tuple[Mapping[str, Any], str, tuple[str, ...]]


@dataclass(frozen=True)
class Reference:
    """A side of a comparison: the packages to compare others with.

    Attributes:
        name: its name in verdicts.
        packages: the packages that it has.
        find: returns its build of a package; raises PipelineError if there is none.
        is_complete: whether a package that it lacks is a new one.
        default: the packages to compare if none is named; if empty, all.
        plan: a revision's plan.
    """

    name: str
    packages: Sequence[str]
    find: Callable[[str], ReferenceBuild]
    is_complete: bool = True
    default: Sequence[str] = ()
    plan: Plan | None = None

    def missing_in(self, plan: Plan) -> list[str]:
        """Return the packages that no config of a workspace makes any more."""
        return [name for name in self.packages if name not in plan.configs.packages]


def open_reference(plan: Plan, word: str, stack: ExitStack) -> Reference | None:
    """Return the reference that a word names: a file, a folder or a revision.

    Returns None if it names none. A revision's files exist until the stack is closed. Raises
    PipelineError.
    """
    path = find_path(plan, word)
    if path.exists():
        return _open_path(path, word)
    commit = find_commit(plan.workspace.root, word)
    if commit is None:
        return None
    name = word if commit.startswith(word) else f"{word} ({commit[:12]})"
    try:
        root = stack.enter_context(read_revision(plan.workspace.root, commit))
    except MissingFolderError:  # the workspace didn't exist yet
        return Reference(name, (), _find_nothing)
    revision = Plan(replace(plan.workspace, root=root))
    revision.trust_last_exports()
    return Reference(
        name,
        revision.packages,
        lambda package: _find_at_revision(revision, package, name),
        plan=revision,
    )


def _find_nothing(package: str) -> ReferenceBuild:
    raise PipelineError(f"{package}: there was no workspace yet")


# Accepted baselines


def open_baselines(plan: Plan) -> Reference:
    """Return the accepted baselines as a reference; a package may not have one yet."""
    paths = (plan.workspace.root / BASELINES).glob("*.yaml")
    return Reference(
        "the accepted baseline",
        sorted(path.stem for path in paths),
        lambda package: _find_accepted(plan, package),
        is_complete=False,
    )


def _find_accepted(plan: Plan, package: str) -> ReferenceBuild:
    """Return the accepted build of a package, with everything the store still knows about it."""
    figures = read_baseline(plan.workspace.baseline(package))
    if figures is None:
        what = f"there is no {BASELINES}/{package}.yaml"
        raise PipelineError(
            f"{package}: {what}; `doit baseline {package}` accepts a build"
        )
    name = "the accepted baseline"
    current = read_build(plan.workspace.package(package) / MANIFEST)
    if current is not None and current["figures"]["digest"] == figures["digest"]:
        return _make_accepted(figures), name, ()
    for action, key in earlier_keys(plan.workspace.store, "link"):
        if key["package"] != package:
            continue
        build = _load_build(plan.workspace.store, action)
        if build is not None and build["figures"]["digest"] == figures["digest"]:
            # The stored numerics may come from another machine.
            merged = {**build["figures"], "methods": figures["methods"]}
            return {**build, "figures": merged}, name, ()
    note = (
        "the build that was accepted is not in the store, so its options are left out"
    )
    return _make_accepted(figures), name, (note,)


def _make_accepted(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an accepted build of which only the figures are known."""
    return {"figures": figures, "manifest": None}


# Builds in folders


def _open_path(path: Path, word: str) -> Reference:
    """Return a reference to builds: a manifest, a package's folder, or a folder of such folders."""
    if path.is_dir() and not (path / MANIFEST).exists():
        packages = sorted(
            manifest.parent.name for manifest in path.glob(f"*/{MANIFEST}")
        )
        if not packages:
            raise PipelineError(
                f"{word}: contains neither {MANIFEST} nor a package's folder"
            )
        return Reference(
            word, packages, lambda package: _read(path / package / MANIFEST, word)
        )
    reference_build = _read(path / MANIFEST if path.is_dir() else path, word)
    build, _, _ = reference_build
    packages = [str(build["manifest"]["package"])]
    return Reference(
        word,
        packages,
        lambda package: reference_build,
        is_complete=False,
        default=packages,
    )


def _read(path: Path, name: str) -> ReferenceBuild:
    if (build := read_build(path)) is None:
        raise PipelineError(f"{name}: {path.name} is not a readable manifest")
    return build, name, ()


# Builds of a revision, from the store


def _find_at_revision(revision: Plan, package: str, name: str) -> ReferenceBuild:
    """Return a revision's build from the store, or its baseline at the revision; build nothing."""
    build, reason, can_build = _find_stored(revision, package)
    if build is not None:
        return build, name, ()
    figures = read_baseline(revision.workspace.baseline(package))
    if figures is not None:
        note = f"{reason} at {name}, so this is the baseline of that revision"
        return _make_accepted(figures), f"the baseline of {name}", (note,)
    remedy = "choose another revision"
    if can_build:
        remedy = f"check it out and run `doit validate:{package}` with this store"
    reason += f" at {name}, and it has no {BASELINES}/{package}.yaml; {remedy}"
    raise PipelineError(f"{package}: {reason}")


def _find_stored(
    revision: Plan, package: str
) -> tuple[Mapping[str, Any] | None, str, bool]:
    """Return the stored build of a package, or None and the reason.

    Also returns whether a checkout of the revision could be built.
    """
    if problems := revision.problems(package):
        return None, f"its config has mistakes ({problems[0]})", False
    store = revision.workspace.store
    try:
        link = revision.link(package)
        methods = revision.methods(package)
    except SourceError as error:
        return None, f"its model can't be read ({error})", False
    if link is None or methods is None:
        model = revision.model(package)
        return None, f"this store has no export of its model {model}", True
    entry = store.get(link.digest)
    build = _load_build(store, link.digest)
    if entry is None or build is None:
        reason = "this store has no build of it with the current tools"
        return None, reason, True
    files = {}
    for name, blob in entry.result["files"].items():
        if name.endswith((".pte", ".ptd")):
            files[name] = blob
    validation = store.get(revision.make_validation(package, files, methods).digest)
    report = None
    if validation:
        report = _load_records(store, validation, REPORT).get(REPORT)
    return _load_build(store, link.digest, report) or build, "", True


def _load_build(
    store: Store, link: Digest, report: Any = None
) -> Mapping[str, Any] | None:
    """Return the stored build of a link, or None if its manifest can't be read."""
    entry = store.get(link)
    records = _load_records(store, entry, MANIFEST, CONTENTS) if entry else {}
    manifest = records.get(MANIFEST)
    if manifest:
        return make_build(manifest, records.get(CONTENTS), report)
    return None


def _load_records(store: Store, entry: ActionEntry, *names: str) -> dict[str, Any]:
    """Return the result's records of these names, or {} if any can't be read or is invalid."""
    files = entry.result["files"]
    try:
        records = {}
        for name in names:
            if name in files:
                records[name] = json.loads(store.read(files[name]))
    except (MissingBlobError, ValueError, RecursionError):
        return {}
    if all(fits_name(*record) for record in records.items()):
        return records
    return {}
