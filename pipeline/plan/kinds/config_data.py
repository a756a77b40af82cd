"""Configs and sources as JSON, to send actions to workers, which read them back.

A config is sent as it was written, with the values of its variables, and is parsed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pipeline.config.secrets import Secret
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import Problem
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.config.models import PackageConfig

# Keys that mark values without a JSON form; nobody writes their first character.
_SECRET = "\ue000secret"  # a secret's name and value
_PAIRS = "\ue000pairs"  # the members of a mapping whose keys are not all strings


def write_config(config: PackageConfig, written: Any) -> dict[str, Any]:
    """Return a config as JSON; `written` is the data that it was parsed from."""
    return {
        "package": config.package,
        "document": written,
        "constants": dict(config.constant_methods),
    }


def read_config(request: Mapping[str, Any]) -> PackageConfig:
    """Parse a config that `write_config` wrote. Raises ConfigErrors."""
    return _parse_config(json.dumps(request))


@lru_cache(maxsize=8)  # the actions of a package arrive one after another
def _parse_config(text: str) -> PackageConfig:
    from pipeline.config.parser import parse_document  # pydantic

    request = json.loads(text)
    document: Any = SimpleNamespace(
        data=from_json(request["document"]), problem=_make_problem, problems=()
    )
    config = parse_document(request["package"], document)
    return config.model_copy(update={"constant_methods": request["constants"]})


def _make_problem(path: str, what: str, known: str = "", at: str = "") -> Problem:
    return Problem("", path, what, known)


def to_json(value: Any) -> Any:
    """Return plain data in a form that JSON preserves.

    This covers secrets, and mappings whose keys are not all strings.
    """
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_json(member) for key, member in value.items()}
        return {_PAIRS: [[key, to_json(member)] for key, member in value.items()]}
    if isinstance(value, list | tuple):
        return [to_json(member) for member in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return {_SECRET: [value.name, value.value]}


def from_json(value: Any) -> Any:
    """Return the data that `to_json` encoded."""
    if isinstance(value, list):
        return [from_json(member) for member in value]
    if not isinstance(value, dict):
        return value
    if _SECRET in value:
        return Secret(*value[_SECRET])
    if _PAIRS in value:
        return {key: from_json(member) for key, member in value[_PAIRS]}
    return {key: from_json(member) for key, member in value.items()}


def write_source(source: MethodSource, root: Path) -> dict[str, Any]:
    """Return a method's source as JSON.

    Its archive is a path in the workspace, or "" for a blob of the store.
    """
    archive = "" if source.exported else str(source.archive.relative_to(root))
    return {**source._asdict(), "archive": archive}


def read_source(request: Mapping[str, Any], workspace: Workspace) -> MethodSource:
    """Read a source that `write_source` wrote."""
    if request["archive"]:
        archive = workspace.root / request["archive"]
    else:
        archive = workspace.store.blob_path(Digest(str(request["content"])))
    parts: dict[str, Any] = {
        "archive": archive,
        "batches": tuple(request["batches"]),
        "renamed": tuple((name, number) for name, number in request["renamed"]),
    }
    return MethodSource(**{**request, **parts})


def write_sources(sources: Mapping[str, MethodSource], root: Path) -> dict[str, Any]:
    """Return the sources of methods as JSON, in order."""
    return {name: write_source(source, root) for name, source in sources.items()}


def read_sources(
    request: Mapping[str, Any], workspace: Workspace
) -> dict[str, MethodSource]:
    """Read sources that `write_sources` wrote."""
    return {name: read_source(source, workspace) for name, source in request.items()}
