"""`doit diff`: packages as they are built, beside the accepted, other builds or a revision."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from pipeline.cli.columns import columns
from pipeline.cli.revisions import checked_out, commit_of
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status
from pipeline.report.files import CONTENTS, MANIFEST, REPORT
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, SourceError, did_you_mean
from pipeline.store.maintenance import earlier_keys
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import BASELINES
from pipeline.validate.gates.baseline import read_baseline
from pipeline.validate.gates.builds import Build, build_at, build_in, build_of
from pipeline.validate.gates.comparison import Comparison, as_markdown, as_text, compared, verdict
from pipeline.validate.gates.figures import Figures, MethodFigures


class Other(NamedTuple):
    """What a package is compared with, what to call it, and what is to be said of it."""

    build: Build
    name: str
    notes: tuple[str, ...] = ()


# Of a package. Raises PipelineError where there is nothing to compare with.
Find = Callable[[str], Other]


def diff(plan: Plan, words: Sequence[str], markdown: bool = False) -> Iterator[str]:
    """Lines for each package.

    Args:
        words: packages, by default all, and at most one other: a manifest, or a folder with some;
            or a revision of git's. By default the accepted baselines.

    Raises:
        PipelineError: for those that can't be compared, after the others were; a line for each.
    """
    packages, against = _understood(plan, words)
    with ExitStack() as stack:
        find, packages = _finder(plan, against, packages, stack)
        refused, first = [], True
        for package in packages:
            try:
                comparison = _compared(plan, package, find)
            except PipelineError as error:
                refused.append(str(error))
                continue
            if not first and (markdown or not comparison.same):
                yield ""
            first = False
            yield from as_markdown(comparison) if markdown else _text(comparison)
        if refused:
            raise PipelineError("\n".join(refused))


def _text(comparison: Comparison) -> Iterator[str]:
    yield verdict(comparison)
    for note in comparison.notes:
        yield f"  {note}"
    if not comparison.same:
        rows = [("", "before", "after", "change"), *as_text(comparison)]
        yield from columns(rows, right=(1, 2))


def _compared(plan: Plan, package: str, find: Find) -> Comparison:
    new = build_in(plan.workspace.package(package))
    if new is None:
        raise PipelineError(f"{package}: is not built; run `doit lower:{package}`")
    other = find(package)
    notes = list(other.notes)
    if not plan.problems(package):
        status = link_status(plan, package)
        if not status.current:
            notes.append(f"build/{package} is not what its sources ask for: {status.reason}")
    if not any(method["sqnr_db"] for method in new.figures["methods"].values()):
        notes.append(f"numerics are left out: build/{package} has not been validated as it is")
    return compared(package, other.build, new, other.name, notes)


# What to compare with


def _understood(plan: Plan, words: Sequence[str]) -> tuple[list[str], str]:
    packages = [word for word in words if word in plan.packages]
    others = [word for word in words if word not in plan.packages]
    if len(others) > 1:
        known = did_you_mean(others[1], plan.packages)
        raise PipelineError(f"'{others[0]}' and '{others[1]}' are no packages; {known}")
    return packages, others[0] if others else ""


def _finder(
    plan: Plan, against: str, packages: list[str], stack: ExitStack
) -> tuple[Find, list[str]]:
    """How to find the other side, and the packages that are meant."""
    if not against:
        return lambda package: _accepted(plan, package), packages or list(plan.packages)
    path = plan.workspace.root / against
    if path.exists():
        return _beside(plan, path, against, packages)
    commit = commit_of(plan.workspace.root, against)
    if commit is None:
        known = did_you_mean(against, plan.packages)
        raise PipelineError(f"'{against}' is no package, file or revision of git's; {known}")
    root = stack.enter_context(checked_out(plan.workspace.root, commit))
    there = Plan(replace(plan.workspace, root=root))
    name = against if commit.startswith(against) else f"{against} ({commit[:12]})"
    wanted = packages or [p for p in plan.packages if p in there.packages]
    return lambda package: _at_revision(there, package, name), wanted


def _accepted(plan: Plan, package: str) -> Other:
    """With all that the store still knows of the build that was accepted."""
    figures = read_baseline(plan.workspace, package)
    if figures is None:
        what = f"there is no {BASELINES}/{package}.yaml"
        raise PipelineError(f"{package}: {what}; `doit baseline {package}` accepts a build")
    name = "the accepted baseline"
    now = build_in(plan.workspace.package(package))
    if now is not None and now.figures["digest"] == figures["digest"]:
        return Other(Build(figures), name)
    for action, key in earlier_keys(plan.workspace.store, "link"):
        if key["package"] != package:
            continue
        found = _stored(plan.workspace.store, action)
        if found is not None and found.figures["digest"] == figures["digest"]:
            return Other(_with_numerics(found, figures), name)
    note = "the build that was accepted is not in the store, so options are left out"
    return Other(Build(figures), name, (note,))


def _with_numerics(build: Build, figures: Figures) -> Build:
    methods = {
        name: cast(
            MethodFigures,
            {**method, **{key: accepted[key] for key in ("sqnr_db", "max_abs")}}  # type: ignore[literal-required]
            if (accepted := figures["methods"].get(name))
            else method,
        )
        for name, method in build.figures["methods"].items()
    }
    return replace(build, figures={**build.figures, "methods": methods})


def _stored(store: Store, link: Digest, report: Any = None) -> Build | None:
    """What the store knows of a package that was linked."""
    result = store.result(link)
    if result is None or MANIFEST not in result["files"]:
        return None
    files = result["files"]
    try:
        manifest = json.loads(store.read(files[MANIFEST]))
        contents = json.loads(store.read(files[CONTENTS])) if CONTENTS in files else None
    except (MissingBlobError, ValueError):
        return None
    return build_of(manifest, contents, report)


def _beside(plan: Plan, path: Path, against: str, packages: list[str]) -> tuple[Find, list[str]]:
    """A manifest, the folder of a package, or one that holds such folders."""
    if path.is_dir() and not (path / MANIFEST).exists():
        here = [p for p in plan.packages if (path / p / MANIFEST).exists()]
        if not here and not packages:
            raise PipelineError(f"{against}: holds no {MANIFEST}, nor a folder of a package")
        return lambda package: _read(path / package / MANIFEST, against), packages or here
    other = _read(path / MANIFEST if path.is_dir() else path, against)
    assert other.build.manifest is not None
    return lambda package: other, packages or [str(other.build.manifest["package"])]


def _read(path: Path, name: str) -> Other:
    build = build_at(path)
    if build is None:
        raise PipelineError(f"{name}: {path.name} is no manifest that can be read")
    return Other(build, name)


def _at_revision(there: Plan, package: str, name: str) -> Other:
    """Nothing is built: it is in the store, or its baseline is in the revision."""
    reason = f"{name} has no such package"
    if package in there.packages:
        build, reason = _built_at(there, package)
        if build is not None:
            return Other(build, name)
        figures = read_baseline(there.workspace, package)
        if figures is not None:
            note = f"{reason} at {name}, so this is the baseline of that revision"
            return Other(Build(figures), f"the baseline of {name}", (note,))
        reason += f" at {name}, and it has no {BASELINES}/{package}.yaml; check it out and run"
        reason += f" `doit validate:{package}` with this store"
    raise PipelineError(f"{package}: {reason}")


def _built_at(there: Plan, package: str) -> tuple[Build | None, str]:
    """The build, or why there is none."""
    problems = there.problems(package)
    if problems:
        return None, f"its config has mistakes ({problems[0]})"
    store = there.workspace.store
    try:
        link, methods = there.link(package), there.methods(package)
    except SourceError as error:
        return None, f"its model can't be read ({error})"
    if link is None or methods is None:
        return None, f"its model {there.model(package)} is not exported in this store"
    result = store.result(link.digest)
    build = _stored(store, link.digest)
    if result is None or build is None:
        return None, "it is not in this store as the present tools would build it"
    files = {n: blob for n, blob in result["files"].items() if n.endswith((".pte", ".ptd"))}
    proved = store.result(there.validation_of(package, files, methods).digest)
    if proved is not None and REPORT in proved["files"]:
        try:
            report = json.loads(store.read(proved["files"][REPORT]))
        except (MissingBlobError, ValueError):
            return build, ""
        build = _stored(store, link.digest, report) or build
    return build, ""
