"""`doit baseline`: accepts the current figures of built and validated packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.cli.verbs import known_packages
from pipeline.features.gates.baseline import (
    format_baseline,
    keep_accepted,
    read_baseline,
)
from pipeline.features.gates.figures import read_build
from pipeline.plan.plan import Plan
from pipeline.plan.status import find_damage, link_status
from pipeline.report.records import read_fitting
from pipeline.store.digest import hash_json
from pipeline.store.errors import ConfigErrors, PipelineError
from pipeline.store.files import MANIFEST, REPORT, write_atomically
from pipeline.store.sizes import human_size
from pipeline.store.workspace import BASELINES


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Write the baselines of packages, by default all, and yield a line for each.

    Raises:
        PipelineError: some packages can't be accepted, with a line for each; raised after the
            others are accepted.
    """
    refused = list[str]()
    for package in known_packages(plan, words):
        try:
            yield f"{BASELINES}/{package}.yaml: {_accept(plan, package)}"
        except PipelineError as error:
            refused += error.lines
    for path in (
        () if words else sorted((plan.workspace.root / BASELINES).glob("*.yaml"))
    ):
        if path.stem not in plan.configs.packages:
            yield f"{BASELINES}/{path.name}: there is no package '{path.stem}'; remove the file"
    if refused:
        raise PipelineError(*refused)


def _accept(plan: Plan, package: str) -> str:
    now = _present(plan, package)
    path = plan.workspace.baseline(package)
    if not path.parent.resolve().is_relative_to(plan.workspace.root.resolve()):
        raise PipelineError(
            f"{package}: {BASELINES}/ is a link that leads out of the workspace"
        )
    before = None
    with suppress(ConfigErrors):  # an unreadable one is replaced
        before = read_baseline(path)
    text = format_baseline(package, keep_accepted(now, before)).encode()
    there = path.read_bytes() if path.is_file() else None
    if there == text:
        return "unchanged"
    _write(path, text)
    size = now["size"]
    if before is None:
        what = "replaced, since it could not be read" if there else "new"
        return f"{what}; {human_size(size)}{_describe_unrun(now)}"
    was = before["size"]
    change = "of the same size"
    if was != size:
        change = f"size {was} -> {size} bytes"
    return f"changed; {change}{_describe_unrun(now)}"


def _write(path: Path, text: bytes) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        place = f"{path.parent.name}/{path.name}"
        raise PipelineError(f"{place}: can't be written: {error.strerror}") from error


def _describe_unrun(figures: Mapping[str, Any]) -> str:
    methods = figures["methods"].items()
    unrun = [name for name, method in methods if method["sqnr_db"] is None]
    if unrun:
        return f"; without numerics for {', '.join(unrun)}: not run here"
    return ""


def _present(plan: Plan, package: str) -> Mapping[str, Any]:
    """Return the figures of a package that is current and validated. Raises PipelineError."""
    plan.check(package)
    first = f"run `doit validate:{package}` first"
    lowered = link_status(plan, package)
    if not lowered.current:
        raise PipelineError(
            f"{package}: its build is out of date ({lowered.reason}); {first}"
        )
    action = plan.validate(package)
    recorded = plan.workspace.state(package).get("validate", {})
    if action is None or recorded.get("measured") != hash_json(action.key["measured"]):
        raise PipelineError(f"{package}: its current build is not validated; {first}")
    if damage := find_damage(plan, package, recorded):
        raise PipelineError(f"{package}: {damage}; {first}")
    folder = plan.workspace.package(package)
    if not recorded["sound"]:
        report = read_fitting(folder / REPORT) or {}
        failures = "".join(f": {each}" for each in report.get("failures", ())[:1])
        raise PipelineError(f"{package}: differs from its source{failures}")
    if not recorded.get("complete", True):
        raise PipelineError(
            f"{package}: the last validation ran out of time and left some inputs out, so its "
            f"figures may be too good; raise validate.budget and {first}"
        )
    if (build := read_build(folder / MANIFEST)) is None:
        raise PipelineError(f"{package}: its manifest can't be read; {first}")
    figures = build["figures"]
    summary = plan.configs.summary(package)
    if summary is not None and "native" in summary.features:
        # Later builds run in alternation with these files, if the store still has them.
        files = build["manifest"]["files"].items()
        digests = {name: file["digest"] for name, file in files}
        figures = {**figures, "files": digests}
    return figures
