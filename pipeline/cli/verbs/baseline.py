"""`doit baseline`: accepts the figures of packages as they are built and validated now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pipeline.plan.plan import Plan
from pipeline.plan.status import damage_of, link_status
from pipeline.report.files import REPORT, read_record
from pipeline.store.digest import of_json
from pipeline.store.errors import ConfigErrors, PipelineError, did_you_mean
from pipeline.store.files import write_atomically
from pipeline.store.sizes import human_size
from pipeline.store.workspace import BASELINES
from pipeline.validate.gates.baseline import baseline_text, read_baseline, settled
from pipeline.validate.gates.builds import build_in
from pipeline.validate.gates.figures import Figures


def accept(plan: Plan, packages: Sequence[str]) -> Iterator[str]:
    """Writes the baselines of these packages, or of all, a line for each.

    Raises:
        PipelineError: for those that can't be accepted, after the others were; a line for each.
    """
    for package in packages:
        if package not in plan.packages:
            raise PipelineError(f"no package '{package}'; {did_you_mean(package, plan.packages)}")
    refused = []
    for package in packages or plan.packages:
        try:
            yield f"{BASELINES}/{package}.yaml: {_accept(plan, package)}"
        except PipelineError as error:
            refused.append(str(error))
    if not packages:
        yield from gone(plan)
    if refused:
        raise PipelineError("\n".join(refused))


def gone(plan: Plan) -> Iterator[str]:
    """A line for each baseline of a package that no config makes."""
    for path in sorted((plan.workspace.root / BASELINES).glob("*.yaml")):
        if path.stem not in plan.packages:
            yield f"{BASELINES}/{path.name}: there is no package '{path.stem}'; remove the file"


def _accept(plan: Plan, package: str) -> str:
    now = _present(plan, package)
    path = plan.workspace.baseline(package)
    before = None
    with suppress(ConfigErrors):  # one that can't be read is replaced
        before = read_baseline(plan.workspace, package)
    text = baseline_text(package, settled(now, before)).encode()
    there = path.read_bytes() if path.is_file() else None
    if there == text:
        return "unchanged"
    write_atomically(path, text)
    if before is None:
        what = "replaced, since it could not be read" if there else "new"
        return f"{what}; {human_size(now['size'])}"
    was, size = before["size"], now["size"]
    return "changed; " + (f"size {was} -> {size} bytes" if was != size else "of the same size")


def _present(plan: Plan, package: str) -> Figures:
    """The figures of a package that is current and proved. Raises PipelineError for any other."""
    plan.check(package)
    first = f"run `doit validate:{package}` first"
    lowered = link_status(plan, package)
    if not lowered.current:
        raise PipelineError(f"{package}: not built as it is asked for ({lowered.reason}); {first}")
    action = plan.validate(package)
    recorded = plan.workspace.state(package).get("validate", {})
    if action is None or recorded.get("measured") != of_json(action.key["measured"]):
        raise PipelineError(f"{package}: not validated as it is now; {first}")
    damage = damage_of(plan, package, recorded["files"])
    if damage:
        raise PipelineError(f"{package}: {damage}; {first}")
    folder = plan.workspace.package(package)
    if not recorded["sound"]:
        report = read_record(folder / REPORT) or {}
        failures = "".join(f": {each}" for each in report.get("failures", ())[:1])
        raise PipelineError(f"{package}: is not what its source is{failures}")
    build = build_in(folder)
    if build is None:
        raise PipelineError(f"{package}: its manifest can't be read; {first}")
    return build.figures
