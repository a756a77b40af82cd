"""Keeps the measurements of a package, so that asking the same question again runs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.store.digest import Digest, hash_file, hash_json
from pipeline.store.files import record_bytes

SENSITIVITY_RESULT = {"record": Digest}
Key = Mapping[str, Any]


def make_key(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action[Any]],
    settings: Mapping[str, Any],
) -> Key:
    """Return the key of the record of a built package.

    Args:
        actions: the quantize actions of the methods that are measured.
        settings: the options that the record depends on, except the budget: only complete records
            are kept.
    """
    # Files, programs, examples, settings, libraries, toolchain and machine. The whole key would be
    # too much: it includes the effects of this record.
    validation = plan.validate(package)
    return {
        "kind": "sensitivity",
        "code": _hash_code(),
        "package": package,
        "measured": validation and hash_json(validation.key["measured"]),
        "quantize": {name: action.digest for name, action in actions.items()},
        "written": hash_json(plan.written(package)),
        "settings": dict(settings),
    }


def read_kept(plan: Plan, key: Key) -> dict[str, Any] | None:
    """Return the record of a key, or None if it is unknown or incomplete."""
    store = plan.workspace.store
    entry = store.get_by_key(key)
    # An entry may outlive its blob, which may have been evicted or damaged.
    if entry is None or not store.intact([entry.result["record"]]):
        return None
    record: dict[str, Any] = json.loads(store.read(entry.result["record"]))
    return record


def keep(plan: Plan, key: Key, record: Mapping[str, Any]) -> None:
    """Keep a record, unless the budget ran out before it was complete."""
    searches = [*record["methods"].values()]
    if "metric" in record:
        searches.append(record["metric"])
    if all(search["complete"] for search in searches):
        store = plan.workspace.store
        store.put_result(key, {"record": store.put(record_bytes(record))})


def _hash_code() -> Digest:
    """Return the digest of this folder's code, which is in no other key."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hash_json({file.name: hash_file(file) for file in files})
