"""Requests: actions as JSON, made of digests and plain values, for any worker.

A worker reads a request in a workspace with the files that the request names. On another machine,
it first computes the key itself, from its own code, libraries and machine, and refuses a request
whose key differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.plan.actions import Action
from pipeline.plan.kinds.config_data import (
    from_json,
    read_config,
    read_sources,
    to_json,
    write_config,
    write_sources,
)
from pipeline.plan.kinds.table import KINDS
from pipeline.store.workspace import Workspace


def write_request(action: Action, root: Path) -> str:
    """Return an action as JSON, given the root of the workspace with its files."""
    request = {
        "kind": action.kind,
        "model": action.model,
        "package": action.package,
        "method": action.method,
        "key": to_json(action.key),
        "inputs": _write_inputs(action.inputs, root),
    }
    return json.dumps(request)


def _write_inputs(inputs: Any, root: Path) -> dict[str, Any]:
    """Return the fields of inputs as JSON."""
    fields = dict(vars(inputs))
    if "config" in fields:
        fields["config"] = write_config(inputs.config, fields.pop("written"))
    if "sources" in fields:
        fields["sources"] = write_sources(inputs.sources, root)
    for name, value in fields.items():
        if hasattr(value, "_asdict"):
            fields[name] = value._asdict()
    return {name: to_json(value) for name, value in fields.items()}


def read_names(text: str) -> Action[None]:
    """Read the names and the key of a requested action, without its inputs."""
    request = json.loads(text)
    names = (request["kind"], request["model"], request["package"], request["method"])
    return Action(*names, from_json(request["key"]), None)


def read_request(text: str, workspace: Workspace) -> Action[Any]:
    """Read a requested action. Raises ConfigErrors if this process can't parse its config."""
    request = json.loads(text)
    fields = {name: from_json(value) for name, value in request["inputs"].items()}
    if "config" in fields:
        fields["config"] = read_config(request["inputs"]["config"])
    if "sources" in fields:
        fields["sources"] = read_sources(fields["sources"], workspace)
    names = (request["kind"], request["model"], request["package"], request["method"])
    return Action(
        *names,
        from_json(request["key"]),
        KINDS[request["kind"]].read(fields),
    )
