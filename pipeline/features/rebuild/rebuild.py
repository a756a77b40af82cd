"""`doit rebuild`: compiles packages again without any cache, and compares the bytes.

A temporary empty store replaces the user's, and a temporary folder replaces `build/`. The sources
are exported and quantized again too.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.cli.batches import open_batch
from pipeline.cli.verbs import known_packages
from pipeline.features.rebuild.exports import compare_methods
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status
from pipeline.plan.tasks import find_action
from pipeline.run.action_status import log_path
from pipeline.run.batch import Batch
from pipeline.store.digest import Digest, hash_file
from pipeline.store.errors import PipelineError
from pipeline.store.files import MANIFEST, read_record
from pipeline.store.json_diff import diff_json, diff_names
from pipeline.store.scratch import scratch_folder
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

_MOST = 5  # manifest differences shown
_PIECE = 1 << 20
_PREFIX = ".rebuild-"


def run(plan: Plan, words: Sequence[str], exports: bool = False) -> Iterator[str]:
    """Build packages again, by default all; yield a line for each, and more if bytes differ.

    Args:
        exports: only export their models again, and compare the programs.

    Raises:
        PipelineError: bytes differ, a package can't be built again, or packages are out of date, in
            which case nothing is built.
    """
    if exports:
        yield from _compare_exports(plan, known_packages(plan, words))
        return
    packages = _current_packages(plan, words)
    if plan.workspace.executor:
        yield f"rebuild: runs on this machine, not on {plan.workspace.executor}"
    with _fresh_workspace(plan.workspace) as workspace:
        build = workspace.build
        failed = _build(Plan(workspace), packages, plan.workspace)
        differing = []
        for package in packages:
            if package in failed:
                continue
            names = list(plan.workspace.state(package)["link"]["files"])
            lines = list(
                compare_folders(plan.workspace.package(package), build / package, names)
            )
            if lines:
                differing.append(package)
                yield f"{package}: the rebuild is a different package"
                yield from (f"  {line}" for line in lines)
            else:
                yield f"{package}: the rebuild has the same bytes in {len(names)} files"
    wrong = [
        f"{package}: {failed[package]}" for package in packages if package in failed
    ]
    if differing:
        number = f"{len(differing)} of {len(packages)} packages"
        wrong.append(f"{number} can't be reproduced: {', '.join(differing)}")
    if wrong:
        raise PipelineError(*"\n".join(wrong).split("\n"))


@contextmanager
def _fresh_workspace(workspace: Workspace) -> Iterator[Workspace]:
    """Yield a workspace of the same sources with an empty store and an empty `build/`."""
    with scratch_folder(_PREFIX, workspace.build) as folder:
        build = folder / "build"
        build.mkdir()
        # A cluster's workers have their own stores, which would return earlier results.
        store = Store(folder / "store")
        yield replace(workspace, store=store, build_folder=build, executor="")


def _current_packages(plan: Plan, words: Sequence[str]) -> list[str]:
    """Return the requested packages.

    Raises PipelineError if any is out of date, because there is nothing to compare with.
    """
    packages = known_packages(plan, words)
    stale = []
    for package in packages:
        plan.check(package)
        status = link_status(plan, package)
        if not status.current:
            stale.append(
                f"{package}: {status.reason}; run `doit lower:{package}` first"
            )
    if stale:
        raise PipelineError(*stale)
    return packages


def _build(plan: Plan, packages: Sequence[str], logs: Workspace) -> dict[str, str]:
    """Build packages, and return the failures by package.

    Args:
        plan: the plan of the rebuild, whose folder is temporary.
        logs: the user's workspace, to which the logs of failures are copied.

    Raises:
        PipelineError: a model can't be exported, and everything else depends on it.
    """
    wrong: dict[str, str] = {}
    with open_batch(plan, sys.stdout) as batch:
        _export(plan, batch, packages, logs)
        for kind in ("quantize", "compile", "link"):
            sound = [package for package in packages if package not in wrong]
            actions = [
                (p, action) for p in sound for action in _find_actions(plan, kind, p)
            ]
            failed = _perform(plan, batch, [action for _, action in actions], logs)
            for package, action in actions:
                if action.digest in failed:
                    wrong.setdefault(package, failed[action.digest])
    return wrong


def _export(
    plan: Plan, batch: Batch, packages: Sequence[str], logs: Workspace
) -> list[str]:
    """Run the exporters of packages, and return the names of their models.

    Raises PipelineError for the first that fails.
    """
    models = list(dict.fromkeys(filter(None, map(plan.exporter, packages))))
    actions = [plan.models.export(model) for model in models]
    if failed := _perform(plan, batch, actions, logs):
        raise PipelineError(next(iter(failed.values())))
    for model in models:
        plan.forget(model)
    return models


def _compare_exports(plan: Plan, packages: Sequence[str]) -> Iterator[str]:
    """Export the models of packages again; yield a line for each, and for each of its methods.

    Raises PipelineError if a model can't be exported, or differs each time.
    """
    differing = []
    with _fresh_workspace(plan.workspace) as workspace:
        fresh_plan = Plan(workspace)
        with open_batch(fresh_plan, sys.stdout) as batch:
            models = _export(fresh_plan, batch, packages, plan.workspace)
        for model in models:
            after = fresh_plan.models.methods(model) or {}
            before = plan.models.methods(model)
            lines = list(compare_methods(after if before is None else before, after))
            is_same = lines == list(compare_methods(after, after))
            verdict = "the same" if is_same else "it differs"
            if before is None:
                verdict = "nothing to compare it with"
            yield f"{model}: exported again, {verdict}"
            yield from (f"  {line}" for line in lines)
            if not is_same:
                differing.append(model)
    if differing:
        problem = "its exporter depends on something that no key contains"
        raise PipelineError(*(f"{model}: {problem}" for model in differing))


def _find_actions(plan: Plan, kind: str, package: str) -> list[Action]:
    units: dict[str, Sequence[tuple[str, ...]]] = {
        "quantize": [(method,) for method in plan.quantized(package)],
        "compile": plan.units(package),
        "link": [()],
    }
    actions = (find_action(plan, kind, package, unit) for unit in units[kind])
    return [action for action in actions if action is not None]


def _perform(
    plan: Plan, batch: Batch, actions: Sequence[Action], logs: Workspace
) -> dict[Digest, str]:
    """Perform each distinct action once, and return the failures by digest."""
    failures: dict[Digest, str] = {}
    different = {action.digest: action for action in actions}
    for action, event in batch.run(list(different.values())):
        if event.error:
            log = _keep_log(plan.workspace, action, logs)
            failures[action.digest] = f"{action.title} failed: {event.error}{log}"
    return failures


def _keep_log(workspace: Workspace, action: Action, logs: Workspace) -> str:
    """Copy the log of a failure out of its temporary folder, and return its new place."""
    log, kept = log_path(action, workspace), log_path(action, logs)
    kept = kept.with_name(f"rebuild-{kept.name}")
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)
        return f"\n  log: {kept.relative_to(logs.root)}"
    return ""


def compare_folders(ours: Path, theirs: Path, names: Sequence[str]) -> Iterator[str]:
    """Compare two folders of a package.

    Yields a line for each file, object and value of the manifest that differs.

    Args:
        names: the package's files in `ours`.
    """
    rebuilt = {path.name for path in theirs.iterdir()} if theirs.is_dir() else set()
    manifests = [read_record(folder / MANIFEST) or {} for folder in (ours, theirs)]
    for name in sorted({*names, *rebuilt}):
        if name not in rebuilt or not (ours / name).is_file():
            yield f"{name} is {'no longer made' if name not in rebuilt else 'new'}"
        elif hash_file(ours / name) != hash_file(theirs / name):
            sizes = [(folder / name).stat().st_size for folder in (ours, theirs)]
            place = first_difference(ours / name, theirs / name)
            yield f"{name}: {sizes[0]} bytes, now {sizes[1]}; differs from byte {place} on"
    yield from _objects(*(manifest.get("objects", {}) for manifest in manifests))
    before, after = (
        {
            key: value
            for key, value in manifest.items()
            if key not in ("objects", "files")
        }
        for manifest in manifests
    )
    lines = [
        f"manifest: {'.'.join(difference.path)}: {difference.values}"
        for difference in diff_json(before, after)
    ]
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"manifest: and {len(lines) - _MOST} more differences"


def _objects(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for (unit,), before, after in diff_names(ours, theirs, None):
        if before is None or after is None:
            yield f"{unit}: only one of the builds compiles it"
        elif before["object"] != after["object"]:
            parts = list(_parts(before["parts"], after["parts"]))
            yield f"{unit}: compiled to a different object: {', '.join(parts)}"


def _parts(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for (kind,), before, after in diff_names(ours, theirs):
        if not (isinstance(before, list) and isinstance(after, list)):
            yield kind
        elif len(before) != len(after):
            yield f"{len(before)} {kind}, now {len(after)}"
        else:
            pairs = enumerate(zip(before, after, strict=True))
            places = [str(place) for place, (x, y) in pairs if x != y]
            yield f"{kind} {', '.join(places)} of {len(before)}"


def first_difference(one: Path, other: Path) -> int:
    """Return the offset of the first byte that differs, or at which the shorter file ends."""
    place = 0
    with open(one, "rb") as a, open(other, "rb") as b:
        while (x := a.read(_PIECE)) == (y := b.read(_PIECE)) and x:
            place += len(x)
    same = (n for n, (m, o) in enumerate(zip(x, y, strict=False)) if m != o)
    return place + next(same, min(len(x), len(y)))
