"""Compares a package with the build that it replaces, to find methods that are delegated less.

Drops are a fact about a workspace's `build/`, not about an action: the package is the same whatever
it replaces, so drops are recorded in the workspace's state and not in any result. A checkout
without an earlier build has nothing to compare, and a package with a baseline has gates for this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pipeline.report.records import delegated_share, read_manifest
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
# By method, the shares of nodes delegated before and now.
Drops = dict[str, tuple[float, float]]


def follow_install(
    workspace: Workspace, package: str
) -> Callable[[], Mapping[str, Any]]:
    """Return a function that compares the next installed build with the build installed now."""
    last = read_manifest(workspace, package)
    recorded = workspace.state(package).get("link", {})
    return partial(find_drops, workspace, package, last, recorded)


def find_drops(
    workspace: Workspace, package: str, last: Json | None, recorded: Mapping[str, Any]
) -> dict[str, Drops]:
    """Return the drops of a package that was just installed, in the form that its state records.

    Args:
        last: the manifest that it replaced.
        recorded: the state of the last build.
    """
    built = read_manifest(workspace, package)
    if last is None or built is None or workspace.baseline(package).exists():
        return {}
    if last.get("action") == built.get("action"):  # the same build again
        drops = {
            name: (was, now) for name, (was, now) in recorded.get("drops", {}).items()
        }
    else:
        drops = _compare(last["methods"], built["methods"])
    return {"drops": drops} if drops else {}


def _compare(last: Json, built: Json) -> Drops:
    drops: Drops = {}
    for name, method in built.items():
        if name in last:
            was = delegated_share([last[name]["delegation"]])
            now = delegated_share([method["delegation"]])
            if was is not None and now is not None and now < was:
                drops[name] = (was, now)
    return drops
