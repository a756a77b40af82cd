"""The history of packages' figures: a row for each package and commit, in the store.

Results in a store name no commit, and `build/` holds only the last build. So each run from a clean
checkout records the figures of the packages that it validated in `history.json` of its store, where
CI and fresh checkouts find them. The file is not part of any key, and may be deleted. It holds rows
of all workspaces that share the store; beyond a limit, the oldest are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.features.trends.past import read_accepted_figures
from pipeline.moments import call_all
from pipeline.report.events import Event
from pipeline.report.records import delegated_share
from pipeline.store.digest import canonical_json, hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.files import MANIFEST, read_record, write_atomically
from pipeline.store.forms import Count, check_of
from pipeline.store.git import run_git
from pipeline.store.revision import find_revision
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

Row = dict[str, Any]
HISTORY = "history.json"
_MOST = 2_000  # rows, of some 200 bytes each
_MOST_OF_PACKAGE = 60
_outline = {
    "workspace": str,
    "package": str,
    "commit": str,
    "time": Count,
    "size": Count,
    "delegated": (float, None),
    "sqnr_db": (float, None),
    "latency": (float, None),
    "processor": (str, None),
}
_is_history = check_of({"rows": [_outline]})


def find_histories(
    workspace: Workspace, packages: Iterable[str]
) -> dict[str, list[Row]]:
    """Return the rows of packages, the oldest first, by package.

    A row has the `commit`; its `time` in seconds since the epoch; the `size` in bytes; the share of
    nodes that are `delegated`; the worst `sqnr_db` over all outputs; the median `latency` of the
    slowest method in milliseconds; and the `processor` on which that was measured. Unknown values
    are None.
    """
    rows = _read_rows(workspace.store)
    if not rows:
        return {}
    identity = _identify(workspace)
    histories: dict[str, list[Row]] = {package: [] for package in packages}
    for row in rows:
        if row["workspace"] == identity and row["package"] in histories:
            histories[row["package"]].append(row)
    return {
        package: sorted(history, key=lambda row: row["time"])[-_MOST_OF_PACKAGE:]
        for package, history in histories.items()
    }


def record_figures(
    workspace: Workspace, events: Sequence[Event], caches: Mapping[str, Any]
) -> None:
    """Record the figures of the packages that a run validated, if its checkout is clean.

    If the store can't be written, nothing is recorded.
    """
    packages = {str(event.package) for event in events if event.kind == "validate"}
    if not packages:
        return
    revision = find_revision(workspace.root)
    if revision is None or revision.changed:
        return
    identity = _identify(workspace)
    known = {
        row["package"]
        for row in _read_rows(workspace.store)
        if row["workspace"] == identity
    }
    rows: list[Row] = []
    for package in sorted(packages):
        manifest = workspace.package(package) / MANIFEST
        build = next(call_all("read_build", manifest), None)
        if build is None:
            continue
        place = {"workspace": identity, "package": package}
        if package not in known:
            for commit, seconds, figures in read_accepted_figures(workspace, package):
                rows.append({**place, **_make_row(commit, seconds, figures)})
        now = _make_row(revision.commit, int(time.time()), build["figures"])
        rows.append({**place, **now})
    _add_rows(workspace.store, rows)


def _identify(workspace: Workspace) -> str:
    """Return a string that distinguishes a workspace from others that share its store.

    It is the hash of the repository's origin and the path in it, or of the workspace's path. It is
    hashed because an origin may hold a secret.
    """
    origin = str(workspace.root).encode()
    with suppress(PipelineError):
        address = run_git(workspace.root, "config", "--get", "remote.origin.url")
        prefix = run_git(workspace.root, "rev-parse", "--show-prefix")
        if address.stdout:
            origin = address.stdout + prefix.stdout
    return hash_json(origin.hex())[:16]


def _make_row(commit: str, seconds: int, figures: Row) -> Row:
    methods = figures["methods"].values()
    ratios: list[float] = []
    latencies: list[float] = []
    for method in methods:
        ratios += [ratio for ratio in method["sqnr_db"] or () if ratio is not None]
        if method["latency"] is not None:
            latencies.append(method["latency"]["median"])
    return {
        "commit": commit,
        "time": seconds,
        "size": figures["size"],
        "delegated": delegated_share(methods),
        "sqnr_db": min(ratios, default=None),
        "latency": max(latencies, default=None),
        "processor": figures["processor"],
    }


def _read_rows(store: Store) -> list[Row]:
    record = read_record(store.root / HISTORY)
    if record is None or not _is_history(record):
        return []
    rows: list[Row] = record["rows"]
    return rows


def _add_rows(store: Store, rows: Sequence[Row]) -> None:
    """Add rows, each replacing the row of its package and commit."""
    places = {_place(row) for row in rows}
    with suppress(OSError), store.lock("history"):
        kept = [row for row in _read_rows(store) if _place(row) not in places]
        content = canonical_json({"rows": [*kept, *rows][-_MOST:]})
        write_atomically(store.root / HISTORY, content, store.root)


def _place(row: Row) -> tuple[str, str, str]:
    return row["workspace"], row["package"], row["commit"]
