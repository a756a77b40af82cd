"""`doit cache`: shows what is in the store, verifies it, and evicts results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pipeline.cli.columns import columns
from pipeline.features.cache.contents import (
    count_files,
    find_unreadable,
    statistics,
    verify,
)
from pipeline.features.cache.eviction import evict
from pipeline.features.cache.wrong_records import find_wrong_records
from pipeline.plan.plan import Plan
from pipeline.report.formatting import duration, percent
from pipeline.store.errors import PipelineError, did_you_mean, listed
from pipeline.store.forms import Count, Seconds
from pipeline.store.places import describe_remedy
from pipeline.store.sizes import human_size
from pipeline.store.store import Store
from pipeline.store.usage import Usage

# The output of `doit cache stats --json` (`moments.Command.record`).
STATISTICS = {
    "format": Literal[1],
    "store": (str, "the folder of the store"),
    "bytes": (Count, "the size of the store"),
    "greatest_bytes": (
        Count,
        None,
        "the size above which results are evicted; null if there is no limit",
    ),
    "blobs": ({"number": Count, "bytes": Count}, "the blobs in the store"),
    "results": (
        {
            "number": Count,
            "bytes": Count,
            "kinds": ({str: Count}, "the number of results by kind of action"),
        },
        "the action results in the store",
    ),
    "usage": (
        {
            str: {
                "hits": (Count, "the number of results that were found"),
                "misses": (Count, "the number of results that were missing"),
                "saved": (
                    Seconds,
                    "the seconds that it originally took to compute the results that were found",
                ),
                "spent": (
                    Seconds,
                    "the seconds that it took to compute the missing results",
                ),
            }
        },
        "the lookups of all runs with this store, by kind of action",
    ),
    "remote": (str, None, "the address of the remote; null if there is none"),
    "fetched_bytes": (Count, "the bytes fetched from remotes in all runs"),
    "pushed_bytes": (Count, "the bytes pushed to remotes in all runs"),
}

# The input from which the key of each kind of action is made.
_LEVELS = {
    **dict.fromkeys(("programs", "reads", "export"), "1 source"),
    **dict.fromkeys(("quantize", "compile", "link", "validate"), "2 program"),
    "preprocess": "3 partition",
}


def run(plan: Plan, words: Sequence[str], json: bool = False) -> Iterator[Any]:
    """Run `stats` (the default), `verify` or `gc`.

    With `json`, `stats` yields the record that `STATISTICS` describes. Raises PipelineError.
    """
    verbs = {"stats": _show_statistics, "gc": _collect_garbage}
    word = "stats"
    if words:
        word = words[0]
    if word not in (*verbs, "verify") or len(words) > 1:
        raise PipelineError(
            f"no '{' '.join(words)}'; {did_you_mean(word, [*verbs, 'verify'])}"
        )
    if json and word != "stats":
        raise PipelineError(f"{word} has no --json; only `doit cache stats` does")
    store = plan.workspace.store
    if json:
        yield _make_record(store)
        return
    if unreadable := find_unreadable(store):
        yield describe_remedy(store.root, f"can't be read ({listed(unreadable, 1)})")
    yield from _verify(plan) if word == "verify" else verbs[word](store)


def _make_record(store: Store) -> dict[str, Any]:
    stats = statistics(store)
    usage = {kind: vars(use) for kind, use in sorted(stats.usage.items())}
    number = sum(stats.results.values())
    fetched, pushed = stats.moved
    return {
        "format": 1,
        "store": str(store.root),
        "bytes": stats.size,
        "greatest_bytes": store.cap,
        "blobs": {"number": stats.blobs, "bytes": stats.blob_bytes},
        "results": {
            "number": number,
            "bytes": stats.result_bytes,
            "kinds": dict(sorted(stats.results.items())),
        },
        "usage": usage,
        "remote": store.remote.settings.url if store.remote is not None else None,
        "fetched_bytes": fetched,
        "pushed_bytes": pushed,
    }


def _show_statistics(store: Store) -> Iterator[str]:
    stats = statistics(store)
    cap = ""
    if store.cap is not None:
        cap = f" of at most {human_size(store.cap)}"
    yield f"store {store.root}: {human_size(stats.size)}{cap}"
    yield f"  {stats.blobs} blobs, {human_size(stats.blob_bytes)}"
    kinds = ", ".join(
        f"{number} {kind}" for kind, number in sorted(stats.results.items())
    )
    number = sum(stats.results.values())
    yield f"  {number} results, {human_size(stats.result_bytes)}" + (
        f": {kinds}" if kinds else ""
    )
    if store.overflow is not None and store.overflow.is_dir():
        yield f"  {store.overflow} has results that this store could not take; you can delete it"
    if stats.usage:
        yield ""
        yield from _usage_table(stats.usage)
    if store.remote is not None or any(stats.moved):
        yield ""
        fetched, pushed = map(human_size, stats.moved)
        where = "none now"
        if store.remote is not None:
            where = store.remote.settings.url
        yield f"remote {where}: {fetched} fetched, {pushed} pushed"
    if store.remote is not None:
        store.remote.check()


def _usage_table(usage: Mapping[str, Usage]) -> Iterator[str]:
    rows = [
        ("level", "action", "hits", "misses", "hit rate", "time saved", "time spent")
    ]
    saved = spent = 0.0
    for level, kind in sorted((_LEVELS.get(kind, ""), kind) for kind in usage):
        use = usage[kind]
        saved += use.saved
        spent += use.spent
        counts = str(use.hits), str(use.misses), percent(use.rate, 0)
        rows.append((level, kind, *counts, duration(use.saved), duration(use.spent)))
    rows.append(("", "all", "", "", "", duration(saved), duration(spent)))
    yield from columns(rows, right=range(2, 7))


def _verify(plan: Plan) -> Iterator[str]:
    workspace = plan.workspace
    files, size = count_files(workspace.store)
    dropped = verify(workspace.store)
    wrong: list[str] = []
    for source in plan.models.sources.values():
        wrong += find_wrong_records(source, workspace.store, workspace.file_digests)
    for record in wrong:
        yield f"wrong: {record}; corrected"
    for name, is_dropped in dropped.items():
        yield f"bad: {name}; {'dropped' if is_dropped else 'it could not be dropped'}"
    result = "all good"
    if dropped or wrong:
        result = f"{len(dropped) + len(wrong)} bad"
    yield f"{files} files, {human_size(size)}: {result}"
    if dropped:
        raise PipelineError("dropped results are rebuilt when needed")
    if wrong:
        raise PipelineError("builds that used a wrong record failed; they work now")


def _collect_garbage(store: Store) -> Iterator[str]:
    if store.remote is not None and (swept := store.remote.sweep()):
        yield f"removed {swept} half-written files from the remote"
    if store.cap is None:
        return
    eviction = evict(store, store.cap)
    if eviction.busy:
        yield "another eviction is running"
        return
    freed = f"{eviction.results} results and {eviction.blobs} blobs, {human_size(eviction.size)}"
    yield f"evicted {freed}; {human_size(eviction.left)} left of at most {human_size(store.cap)}"
    if eviction.left > store.cap and eviction.in_use:
        yield f"{human_size(eviction.in_use)} are in use by running builds"
    elif eviction.left > store.cap:
        raise PipelineError(
            describe_remedy(store.root, "can't be written, so eviction stops")
        )
