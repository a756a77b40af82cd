"""Packages whose next run needs results that a full store has evicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.plan.plan import Plan
from pipeline.report.events import DONE, Event
from pipeline.store.errors import listed
from pipeline.store.files import is_plain
from pipeline.store.sizes import human_size


def describe_full_store(plan: Plan, events: Sequence[Event]) -> Iterator[str]:
    """Yield a line if results of this run's packages were evicted: the next run will rebuild them.

    With a remote, no line is needed: it would have the results.
    """
    store = plan.workspace.store
    if store.cap is None or store.remote is not None:
        return
    # Nothing was evicted if a result is missing because its action failed or did not run.
    unbuilt = {event.package for event in events if event.outcome not in DONE}
    packages = {event.package for event in events if event.package} - unbuilt
    evicted = [name for name in sorted(map(str, packages)) if _is_evicted(plan, name)]
    if evicted:
        yield (
            f"the store is full ({human_size(store.cap)}): it has evicted results of "
            f"{listed(evicted)}, so the next run builds them again; raise `store_size`"
        )


def _is_evicted(plan: Plan, package: str) -> bool:
    """Return whether a linked package lacks the result of an export or a compile.

    The result of its link isn't needed while the package's files are in `build/`.
    """
    store, state = plan.workspace.store, plan.workspace.state(package)
    files = [store.action_path(action) for action in state.get("compile", {}).values()]
    if not files:
        return False
    methods = plan.methods(package) or {}
    files += [source.archive for source in methods.values()]
    return not all(map(is_plain, files))
