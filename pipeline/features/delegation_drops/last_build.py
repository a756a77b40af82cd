"""Compares a package with the build that it replaces: what is delegated less than before.

It is a fact of a workspace's `build/`, not of an action: the package is the same whatever was there
before, so it is noted in the workspace's state and no result holds it. A checkout without an
earlier build has nothing to compare with, and a package with a baseline has gates that do.
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
    """Return a function that, once another build is installed, compares it with the one that is
    there now."""
    last = read_manifest(workspace, package)
    recorded = workspace.state(package).get("link", {})
    return partial(find_drops, workspace, package, last, recorded)


def find_drops(
    workspace: Workspace, package: str, last: Json | None, recorded: Mapping[str, Any]
) -> dict[str, Drops]:
    """Return what the state of a package that was just installed records of its drops.

    Args:
        last: the manifest that it replaced.
        recorded: the state of the last build.
    """
    built = read_manifest(workspace, package)
    if last is None or built is None or workspace.baseline(package).exists():
        return {}
    if last.get("action") == built.get("action"):  # the same once more
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
