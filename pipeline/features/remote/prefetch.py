"""Prefetches from a remote: fetches many entries at once before a plan looks them up one by one.

Each wave is known only from the previous one: the records of what exporters read, the exports, the
links and the entries they are linked from, the validations, and the blobs of all these. So a build
waits for a few rounds, rather than for each of its packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from pipeline.plan import keys
from pipeline.plan.actions import Action
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.kinds.export import reads_key
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.plan import Plan
from pipeline.store.digest import Digest, hash_json
from pipeline.store.entries import ActionEntry
from pipeline.store.errors import PipelineError
from pipeline.store.pieces import blobs_of_files


def prefetch_exports(plan: Plan, packages: Sequence[str]) -> None:
    """Fetch the records that identify the exports of packages."""
    store = plan.workspace.store
    exports = dict.fromkeys(export for export in map(plan.exporter, packages) if export)
    store.ask(_find_reads(plan, exports))
    candidates: list[Digest] = []
    for export in exports:
        with suppress(PipelineError):  # reported when its packages' turn comes
            candidates += (action.digest for action in plan.models.candidates(export))
    store.ask(candidates)
    programs: dict[Digest, None] = {}
    for package in packages:
        if plan.exporter(package) in exports and not plan.workspace.state(package):
            with suppress(PipelineError):
                methods = plan.methods(package) or {}
                programs |= dict.fromkeys(method.program for method in methods.values())
    store.ask(hash_json(keys.program_key(program)) for program in programs)


def _find_reads(plan: Plan, exports: Iterable[str]) -> Iterator[Digest]:
    """Yield the actions that record what exporters read, if the exporters' files can be read."""
    for export in exports:
        content = plan.workspace.file_digests.find(plan.models.source(export).path)
        if content:
            yield hash_json(reads_key(export, content))


def prefetch_packages(
    plan: Plan, packages: Sequence[str], validates: bool, looks_up_methods: bool
) -> list[Digest]:
    """Fetch the entries of all actions that a build of these packages would look up.

    Returns the blobs that the build would take from the store.

    Args:
        validates: whether packages are validated too.
        looks_up_methods: whether to look up the methods of a package that is already linked.
    """
    links = _find_links(plan, packages)
    linked = _ask_for_links(plan, links)
    unlinked = [
        package for package in links if looks_up_methods or package not in linked
    ]
    blobs = _ask_for_units(plan, unlinked)
    for entry in linked.values():
        blobs += blobs_of_files(entry.result)
    if validates:
        blobs += _ask_for_validations(plan, linked)
    return blobs


def _find_links(plan: Plan, packages: Sequence[str]) -> dict[str, Digest]:
    """Return the link actions of the packages that are not up to date here."""
    links: dict[str, Digest] = {}
    for package in packages:
        digest = plan.link_digest(package)
        recorded = plan.workspace.state(package).get("link", {})
        if digest and digest != recorded.get("action"):
            links[package] = digest
    return links


def _ask_for_links(plan: Plan, links: Mapping[str, Digest]) -> dict[str, ActionEntry]:
    """Return the available entries of link actions, by package."""
    store = plan.workspace.store
    store.ask(links.values())
    entries = {package: store.get(link) for package, link in links.items()}
    return {package: entry for package, entry in entries.items() if entry is not None}


def _ask_for_units(plan: Plan, packages: Sequence[str]) -> list[Digest]:
    """Fetch the entries that packages are linked from; return their blobs."""
    store = plan.workspace.store
    compiles: list[Action[CompileInputs]] = []
    for package in packages:
        compiles += plan.compiles(package) or ()
    store.ask(unit.digest for unit in compiles)
    quantizes: list[Digest] = []
    for unit in compiles:
        if store.get(unit.digest) is None:
            quantizes += unit.inputs.quantizes.values()
    store.ask(quantizes)
    blobs: list[Digest] = []
    for digest in [*(unit.digest for unit in compiles), *quantizes]:
        if (entry := store.get(digest)) is not None:
            blobs += KINDS[entry.key["kind"]].blobs(entry.result)
    return blobs


def _ask_for_validations(plan: Plan, linked: Mapping[str, ActionEntry]) -> list[Digest]:
    """Fetch the entries of the validations of linked packages; return their blobs."""
    store = plan.workspace.store
    plan.foreseen = {
        package: entry.result["files"] for package, entry in linked.items()
    }
    digests = [plan.validate_digest(package) for package in linked]
    plan.foreseen = {}
    validations = [digest for digest in digests if digest]
    store.ask(validations)
    blobs: list[Digest] = []
    for validation in validations:
        if (entry := store.get(validation)) is not None:
            blobs += blobs_of_files(entry.result)
    return blobs
