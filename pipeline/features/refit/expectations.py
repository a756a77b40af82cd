"""Remembers which models are refitted, so that a worker needn't import torch for their exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.plan.actions import Action
from pipeline.plan.export_parameters import parse_export
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.kinds.parts import Key
from pipeline.store.digest import hash_json
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]


def expects_refit(export: Action[Any], workspace: Workspace) -> bool:
    """Return whether the exports of a model are probably refitted, so that torch isn't needed."""
    model, _ = parse_export(export.model)
    expected: bool = read_own(_model_key(model), workspace.store).get("refits", False)
    return workspace.refit and expected


def expect_refits(action: Action[CompileInputs], store: Store, expected: bool) -> None:
    """Record whether new weights of a unit's model are probably refitted."""
    key = _model_key(action.model)
    record = {"refits": expected}
    if read_own(key, store) != record:
        store.put_result(key, record, pushes=False)


def _model_key(model: str) -> Key:
    return {"kind": "refit-model", "model": model}


def read_own(key: Key, store: Store) -> Json:
    """Return the result stored here under a key, without asking the remote, or {}.

    As in `Store.get`, what derives from remote results counts only while these are trusted.
    """
    action = hash_json(key)
    entry = store.read_entry(store.action_path(action), action)
    if entry is None or not store.trusts(entry.vouchers):
        return {}
    return entry.result
