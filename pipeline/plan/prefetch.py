"""Prefetches from a remote: what a plan looks up one by one is fetched before, many at a time.

Each wave is known only from the one before it: where exporters looked, the exports, the links and
what they are linked from, the validations, and the blobs of all these. So a build waits for a few
rounds, and not for each of its packages. Without a remote nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pipeline.plan import keys
from pipeline.plan.kinds.export import reads_key
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.plan import Plan
from pipeline.store.digest import Digest, hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.pieces import blobs_of_files


def ask_for_exports(plan: Plan, packages: Sequence[str]) -> None:
    """Fetch the records by which the exports of packages are known."""
    store = plan.workspace.store
    digests = plan.workspace.file_digests
    if store.remote is None:
        return
    exports = dict.fromkeys(export for export in map(plan.exporter, packages) if export)
    sources = {export: plan.models.source(export).path for export in exports}
    contents = {export: digests.find(path) for export, path in sources.items()}
    store.ask(hash_json(reads_key(each, content)) for each, content in contents.items() if content)
    candidates: list[Digest] = []
    for export in sources:
        with suppress(PipelineError):  # told when the turn of its packages comes
            candidates += (action.digest for action in plan.models.candidates(export))
    store.ask(candidates)
    programs: dict[Digest, None] = {}
    for package in packages:
        if plan.exporter(package) in sources and not plan.workspace.state(package):
            with suppress(PipelineError):
                methods = plan.methods(package) or {}
                programs |= dict.fromkeys(method.program for method in methods.values())
    store.ask(hash_json(keys.program_key(program)) for program in programs)


def ask_for_packages(
    plan: Plan, packages: Sequence[str], validate: bool = True, methods: bool = False
) -> list[Digest]:
    """Fetch the entries of all actions that a build of these packages would look up, and return the
    blobs that it would take from the store.

    Args:
        validate: whether packages are validated too.
        methods: whether those of a package that is linked already are looked up as well.
    """
    store = plan.workspace.store
    if store.remote is None:
        return []
    links = {package: digest for package in packages if (digest := _find_link(plan, package))}
    store.ask(links.values())
    linked = {package: entry for package, link in links.items() if (entry := store.get(link))}
    unlinked = [package for package in links if methods or package not in linked]
    compiles = [unit for package in unlinked for unit in plan.compiles(package) or ()]
    store.ask(unit.digest for unit in compiles)
    quantizes: list[Digest] = []
    for unit in compiles:
        if store.get(unit.digest) is None:
            quantizes += unit.inputs.quantizes.values()
    store.ask(quantizes)
    blobs = [*_blobs(plan, [*(unit.digest for unit in compiles), *quantizes])]
    blobs += [blob for entry in linked.values() for blob in blobs_of_files(entry.result)]
    if validate:
        files = {package: entry.result["files"] for package, entry in linked.items()}
        validations = [d for package in linked if (d := plan.validate_digest(package, files))]
        store.ask(validations)
        entries = filter(None, map(store.get, validations))
        blobs += [blob for entry in entries for blob in blobs_of_files(entry.result)]
    return blobs


def _find_link(plan: Plan, package: str) -> Digest | None:
    """Return the link action of a package that is not up to date here."""
    digest = plan.link_digest(package)
    recorded = plan.workspace.state(package).get("link", {})
    if digest == recorded.get("action"):
        return None
    return digest


def _blobs(plan: Plan, actions: Sequence[Digest]) -> Iterator[Digest]:
    for action in actions:
        entry = plan.workspace.store.get(action)
        if entry is not None:
            yield from KINDS[entry.key["kind"]].blobs(entry.result)
