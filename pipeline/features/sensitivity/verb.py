"""`doit sensitivity`: the cost of quantizing each module, and which modules to keep in float."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.cli.verbs import known_packages
from pipeline.features.sensitivity.against import (
    MOST_BUILDS,
    Backends,
    compare_backends,
    find_proposal,
)
from pipeline.features.sensitivity.against_table import describe_against
from pipeline.features.sensitivity.edits import edit_configs, edit_methods
from pipeline.features.sensitivity.kept import keep, make_key, read_kept
from pipeline.features.sensitivity.planning import AGAINST_FILE, FILE
from pipeline.features.sensitivity.proposal import (
    examine,
    find_lacking,
    find_measurable,
    find_overrides,
)
from pipeline.features.sensitivity.table import (
    describe_method,
    describe_metric,
    describe_verification,
)
from pipeline.features.sensitivity.trial import build_package
from pipeline.features.sensitivity.variants import add_variants
from pipeline.moments import has_feature
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError
from pipeline.store.files import record_bytes, write_atomically

_BUDGET = 300.0  # seconds
_LACK = 'this installation has no feature "config_edits", which edits configs'


def run(
    plan: Plan,
    words: Sequence[str],
    floor: str = "",
    budget: str = "",
    variants: str = "",
    metric: str = "",
    against: str = "",
    write: bool = False,
    json: bool = False,
) -> Iterator[Any]:
    """Yield the cost of quantizing each module of packages, and a verified proposal.

    With `json`, one record of all packages is yielded instead.

    Raises:
        PipelineError: a package can't be built or has nothing to measure, an option is not a
            number, the proposal can't be written, or no feature edits configs.
    """
    # Without it no proposal can be built, which would only be found out after all measurements.
    if not has_feature("config_edits"):
        raise PipelineError(_LACK)
    if not words:
        raise PipelineError("name a package: doit sensitivity <package>")
    least = _parse_number("floor", floor)
    seconds = _parse_number("budget", budget) or _BUDGET
    most = _parse_count(variants)
    if floor and (metric or against):
        other = "metric" if metric else "against"
        fault = f"--floor and --{other}: choose one"
        raise PipelineError(fault)
    backends = Backends(against) if against else None
    records: list[dict[str, Any]] = []
    written: list[str] = []
    for package in known_packages(plan, words):
        build_package(plan, package)
        actions = {} if backends else find_measurable(plan, package)
        settings = {
            "floor": least,
            "variants": most,
            "metric": metric,
            "against": against,
        }
        key = make_key(plan, package, actions, settings)
        record = read_kept(plan, key)
        is_kept = record is not None
        if record is None and backends:
            builds = most or MOST_BUILDS
            record = compare_backends(plan, package, backends, builds, metric)
        elif record is None:
            record = examine(plan, package, actions, least, seconds, metric)
            if most:
                methods = record["methods"]
                add_variants(plan, package, actions, methods, most, metric)
        keep(plan, key, record)
        name = AGAINST_FILE if backends else FILE
        path = plan.workspace.package(package) / name
        write_atomically(path, record_bytes(record), plan.workspace.build)
        records.append(record)
        if not json:
            yield from _describe(record)
        if is_kept and not json:
            yield f"{package}: already measured; nothing was run"
        if write and not _has_proposal(record) and not json:
            yield f"{package}: nothing to write"
        elif not write and not json and _has_proposal(record) and not _misses(record):
            yield f"{package}: add --write to put this into the config"
        for name in _write(plan, record) if write else ():
            written.append(name)
            if not json:
                yield f"{package}: wrote {name}"
    if json:
        yield {"format": 1, "packages": records, "written": written}


def _parse_number(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (name == "budget" and number <= 0):
        raise PipelineError(f"--{name} {text}: must be a number, such as --{name} 30")
    return number


def _parse_count(text: str) -> int:
    """Return how many modules per method to try in float alone."""
    if not text:
        return 0
    if not text.isdecimal() or not int(text):
        raise PipelineError(f"--variants {text}: must be a count, such as --variants 3")
    return int(text)


def _has_proposal(record: Mapping[str, Any]) -> bool:
    if "against" in record:
        return bool(find_proposal(record))
    return record["verified"] is not None


def _describe(record: Mapping[str, Any]) -> Iterator[str]:
    for name, method in record["methods"].items():
        yield from describe_method(f"{record['package']}/{name}", method)
    if "metric" in record:
        yield from describe_metric(record)
    if "against" in record:
        yield from describe_against(record)
    yield from describe_verification(record)


def _misses(record: Mapping[str, Any]) -> dict[str, float]:
    """Return by how many dB the proposal misses the floors of methods."""
    floors = {name: method["floor_db"] for name, method in record["methods"].items()}
    return find_lacking(record["verified"], record["methods"], floors)


def _write(plan: Plan, record: Mapping[str, Any]) -> Iterator[str]:
    """Write the configs of a verified proposal, and yield their names.

    Raises PipelineError if the proposal misses its floor.
    """
    package = record["package"]
    lacking = _misses(record)
    if lacking:
        names = ", ".join(sorted(lacking))
        raise PipelineError(
            f"{package}: the proposal does not reach the floor for {names}, so nothing is written"
        )
    texts: Mapping[str, str] = {}
    if "against" in record:
        texts = edit_methods(plan, package, find_proposal(record))
    if record["verified"] is not None:
        texts = edit_configs(plan, package, find_overrides(record["methods"]))
    folder: Path = plan.workspace.configs
    for name, text in texts.items():
        write_atomically(folder / name, text.encode(), plan.workspace.root)
        yield f"{folder.name}/{name}"
