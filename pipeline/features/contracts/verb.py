"""`doit contract`: what packages require of the runtime that loads them, and how to build it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pipeline.cli.verbs import known_packages
from pipeline.features.contracts.cmake import cmake_lines
from pipeline.features.contracts.outline import CONTRACT as OUTLINE
from pipeline.features.contracts.planning import TARGETS, target_file
from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status
from pipeline.report.records import read_fitting
from pipeline.run.action_log import logging_to
from pipeline.store.errors import PipelineError, plural
from pipeline.store.files import (
    CONTRACT,
    REPORT,
    SELECTION,
    make_folder,
    record_bytes,
    write_atomically,
)
from pipeline.store.names import NAME_PATTERN

Json = Mapping[str, Any]
_WHEEL = "wheel"  # the target's name by default


# The output of `doit contract --json` (`moments.Command.record`).
CONTRACTS = {
    "format": Literal[1],
    "packages": (
        {
            str: {
                "contract": (OUTLINE, "the package's `contract.json`"),
                "runs_in": (
                    {str: str},
                    "whether the package runs, by runtime: `yes`, or `no` and why",
                ),
            }
        },
        "the packages by name; empty with `--all`",
    ),
    "all": (
        OUTLINE,
        None,
        "with `--all`, the joint contract of all packages, in the form of `contract`",
    ),
}


def run(
    plan: Plan,
    words: Sequence[str],
    all: bool = False,
    of_runtime: bool = False,
    on: str = "",
    json: bool = False,
) -> Iterator[Any]:
    """Print the contract of each package, or check or describe a runtime.

    Contracts come with the CMake lines of the runtime, for each package or for all packages
    together. Alternatively, packages are checked against the runtime of a device, or the target of
    this machine's runtime is written. With `json`, yield the contracts as the record that
    `CONTRACTS` describes.

    Raises:
        PipelineError: some packages' builds are missing or out of date, or a device lacks what they
            need; raised after the others are printed. With `all`, nothing is printed unless all are
            up to date.
    """
    if json and (on or of_runtime):
        raise PipelineError("--json works only with --all; leave out the other option")
    if of_runtime:
        yield from _write_target(plan, words)
        return
    if on:
        yield from _ask_device(plan, words, on)
        return
    contracts = dict[str, Json]()
    refused = list[str]()
    for package in known_packages(plan, words):
        try:
            contracts[package] = _read(plan, package)
        except PipelineError as error:
            refused += error.lines
    joined = _write_joined(plan, contracts) if all and not refused else None
    single = {} if all else contracts
    runs_in = {package: _find_runtimes(plan, package) for package in single}
    if json:
        yield {
            "format": 1,
            "packages": {
                package: {"contract": contract, "runs_in": runs_in[package]}
                for package, contract in single.items()
            },
            "all": joined,
        }
    else:
        if joined is not None:
            yield from _describe_joined(plan, joined)
        for number, (package, contract) in enumerate(single.items()):
            yield from [""] if number else []
            selection = plan.workspace.package(package) / SELECTION
            yield from _describe(package, contract, selection, runs_in=runs_in[package])
    if refused:
        raise PipelineError(*refused)


def _find_runtimes(plan: Plan, package: str) -> dict[str, str]:
    """Return, for each runtime in a package's report, whether the package runs there, in words."""
    report = read_fitting(plan.workspace.package(package) / REPORT) or {}
    return dict(report.get("runs_in", {}))


def _write_joined(plan: Plan, contracts: Mapping[str, Json]) -> Json:
    """Write the joint contract of several packages to build/, and return it."""
    from pipeline.features.contracts.contract import format_selection, join_contracts

    joined = join_contracts(list(contracts.values()))
    build = plan.workspace.build
    write_atomically(build / CONTRACT, record_bytes(joined), build)
    write_atomically(build / SELECTION, format_selection(joined), build)
    return joined


def _describe_joined(plan: Plan, joined: Json) -> Iterator[str]:
    """Yield the lines on the joint contract of several packages."""
    build = plan.workspace.build
    title = plural(len(joined["packages"]), "package")
    yield from _describe(title, joined, build / SELECTION, "app")
    yield f"written: {_shown(plan, build / CONTRACT)}, {_shown(plan, build / SELECTION)}"


def _ask_device(plan: Plan, words: Sequence[str], device: str) -> Iterator[str]:
    """Yield a line for each package whose needs the runtime of a device meets.

    Raises PipelineError with a line for each unmet need.
    """
    lacks = []
    make_folder(plan.workspace.logs, plan.workspace.build)
    for package in known_packages(plan, words):
        contract = _read(plan, package)
        folder = plan.workspace.package(package)
        paths = [*folder.glob("*.pte"), *map(folder.joinpath, contract["data_files"])]
        with logging_to(plan.workspace.logs / "contract.log"):  # libraries warn
            answers = list(call_all("ask_device", plan.workspace, device, paths))
        if not answers:
            raise PipelineError(
                "this installation has no feature that queries devices (native)"
            )
        for method, sentences in answers[0].items():
            for sentence in sentences:
                lacks.append(f"{package}/{method} on {device}: its runtime {sentence}")
        if not answers[0]:
            operators = plural(len(contract["operators"]), "operator")
            backends = plural(len(contract["backends"]), "backend")
            needs = f"the runtime has everything that the package needs: {operators}, {backends}"
            yield f"{package} on {device}: {needs}"
    if lacks:
        raise PipelineError(*lacks)


def _read(plan: Plan, package: str) -> Json:
    plan.check(package)
    lowered = link_status(plan, package)
    first = f"run `doit lower {package}` first"
    if not lowered.current:
        raise PipelineError(
            f"{package}: its build is out of date ({lowered.reason}); {first}"
        )
    contract = read_fitting(plan.workspace.package(package) / CONTRACT)
    if contract is None:
        raise PipelineError(f"{package}: its {CONTRACT} can't be read; {first}")
    return contract


def _shown(plan: Plan, path: Path) -> str:
    root = plan.workspace.root
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _describe(
    title: str,
    contract: Json,
    selection: Path,
    name: str = "",
    runs_in: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Yield the lines on one contract; `runs_in` says by runtime whether the package runs there."""
    operators = contract["operators"]
    backends = contract["backends"]
    yield f"{title}: {plural(len(operators), 'operator')}, {plural(len(backends), 'backend')}"
    releases = (f"executorch {item}" for item in contract["executorch"])
    schemas = (
        f"schema {item['identifier']}.{item['version']}" for item in contract["schemas"]
    )
    facts = {
        "made by": ", ".join([*releases, *schemas]),
        "aligned": ", ".join(
            f"{part.replace('_', ' ')} to {n}"
            for part, n in contract["alignment"].items()
            if n
        ),
        "memory": "; ".join(_describe_memory(contract)),
        "data files": ", ".join(contract["data_files"]),
        "runs in": "; ".join(f"{name} {said}" for name, said in runs_in.items()),
    }
    yield from (
        f"  {title_of_fact + ':':<12} {words}"
        for title_of_fact, words in facts.items()
        if words
    )
    for name_of_backend, link in backends.items():
        library = ""
        if link["library"]:
            library = f" in {link['library']}"
        yield f"  backend {name_of_backend}{library}"
    for kernels in dict.fromkeys(item["kernels"] for item in operators.values()):
        operators_of_kernels = {
            name: item for name, item in operators.items() if item["kernels"] == kernels
        }
        yield f"  {kernels} kernels, {len(operators_of_kernels)}:"
        yield from (
            f"    {item}  {', '.join(facts['dtypes'])}".rstrip()
            for item, facts in operators_of_kernels.items()
        )
    yield ""
    yield from cmake_lines(contract, f"{name or title}_kernels", selection.as_posix())


def _describe_memory(contract: Json) -> Iterator[str]:
    """Yield the greatest size of each arena, in bytes, and the method that plans it."""
    greatest: dict[int, tuple[int, str]] = {}
    for name, method in contract["methods"].items():
        for arena_facts in method["planned_memory"]:
            so_far = greatest.get(arena_facts["arena"], (0, ""))
            greatest[arena_facts["arena"]] = max(
                so_far, (arena_facts["size"], name), key=lambda pair: pair[0]
            )
    for arena, (size, method) in sorted(greatest.items()):
        if size:
            yield f"arena {arena} {size:,} bytes, in {method}"


def _write_target(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Write the description of the wheel's runtime to targets/<name>.yaml. Raises PipelineError."""
    from pipeline.features.contracts.targets import HEAD, format_target
    from pipeline.features.contracts.wheel import describe_wheel

    if len(words) > 1:
        raise PipelineError("name one target: doit contract --of-runtime [name]")
    name = next(iter(words), _WHEEL)
    if not re.fullmatch(NAME_PATTERN, name):
        raise PipelineError(f"'{name}' can't name a file in {TARGETS}/")
    root = plan.workspace.root
    path = root / target_file(name)
    content = (
        path.read_text(encoding="utf-8", errors="replace") if path.is_file() else HEAD
    )
    if not content.startswith(HEAD):
        raise PipelineError(
            f"{target_file(name)} already exists and was written by hand; choose another name"
        )
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise PipelineError(f"{TARGETS}/ is a link that leads out of the workspace")
    facts = describe_wheel()
    write_atomically(path, format_target(facts).encode())
    counts = (
        plural(len(facts["operators"]), "operator"),
        plural(len(facts["backends"]), "backend"),
    )
    yield f"{target_file(name)}: {' and '.join(counts)} of executorch {facts['executorch']}"
