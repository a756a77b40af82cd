"""Packs actions into parcels: their configs as data, and their files as blobs of the store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pipeline.plan.actions import (
    Action,
    CompileInputs,
    LinkInputs,
    QuantizeInputs,
    ValidateInputs,
)
from pipeline.plan.config_cache import ConfigCache
from pipeline.plan.reads import is_inside
from pipeline.plan.tasks import KINDS
from pipeline.program.constant_values import find_blobs
from pipeline.program.sources import MethodSource
from pipeline.run.executors.cluster.forms import Parcel, Source
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError
from pipeline.store.files import CONTENTS, CONTRACT, MANIFEST, is_plain
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog

_SECRET = "\ue000secret"  # the key of a secret's name and value; nobody writes this sign


class Packer:
    """Packs the actions of a workspace. `always` performs them whatever the store holds."""

    def __init__(self, workspace: Workspace, always: bool) -> None:
        self._workspace = workspace
        self._always = always
        self._lock = threading.Lock()
        self._configs = ConfigCache(workspace)

    def pack(self, action: Action) -> str:
        """Return an action as JSON, after giving what it needs to the store and its remote. Raises
        SourceError for a file that can't be read any more, and OSError."""
        with self._lock:
            parcel = self._collect(action)
        blobs = [*parcel["files"].values(), *parcel["blobs"]]
        self._workspace.store.share(parcel["before"], blobs)  # which may take long
        return json.dumps(parcel, default=_jsonable)

    def _collect(self, action: Action) -> Parcel:
        workspace, inputs, package = self._workspace, action.inputs, str(action.package)
        sources = _sources(inputs)
        constants = _constants(action)
        before = list(self._before(action))
        return {
            "kind": action.kind,  # type: ignore[typeddict-item]  # exports stay with the driver
            "model": action.model,
            "package": package,
            "method": action.method,
            "key": dict(action.key),
            "config": None if action.kind == "link" else self._written(package),
            "sources": {name: self._source(each) for name, each in sources.items()},
            "constants": constants,
            "link": asdict(inputs) if isinstance(inputs, LinkInputs) else None,
            "family": inputs.family if isinstance(inputs, ValidateInputs) else {},  # type: ignore[typeddict-item]
            "files": {name: self._file(name) for name in sorted(self._names(action, sources))},
            "before": before,
            "blobs": list(dict.fromkeys(self._blobs(sources, constants, before))),
            "operators": (list(workspace.operators.listed), workspace.operators.folder),
            "crashes": CrashLog(workspace.logs, package).crashes(),
            "always": self._always,
            "fast_lowering": workspace.fast_lowering,
            "refit": workspace.refit,
        }

    def _written(self, package: str) -> Any:
        document = self._configs.parsed(package).document
        if document is None:
            raise SourceError(f"{package}: its config changed while the build ran; run again")
        return document.data

    def _source(self, source: MethodSource) -> Source:
        facts = {**vars(source), "batches": list(source.batches)}
        root = self._workspace.root
        facts["archive"] = "" if source.exported else str(source.archive.relative_to(root))
        del facts["exported"], facts["renamed"]  # a worker checks no config
        return facts  # type: ignore[return-value]

    def _names(self, action: Action, sources: Mapping[str, MethodSource]) -> set[str]:
        """Return the files of the workspace that an action reads, by path."""
        root, inputs, key = self._workspace.root, action.inputs, action.key
        archives = (each.archive for each in sources.values() if not each.exported)
        names = {str(path.relative_to(root)) for path in archives}
        for config in _configs(inputs):
            names |= {path for paths in config.files.values() for path in paths}
        measured = key.get("measured", key)
        for read in (
            *key.get("passes", {}).values(),
            *measured.get("operator_inputs", {}).values(),
        ):
            names |= {name for name, found in read.items() if found and _is_file(name)}
        if isinstance(inputs, ValidateInputs):
            names |= self._validated(action)
        return {name for name in names if (root / name).is_file()}

    def _validated(self, action: Action[ValidateInputs]) -> set[str]:
        """Return the files that only a validation reads: the package, examples, the baseline and
        what its report quotes."""
        workspace, inputs = self._workspace, action.inputs
        folder = workspace.package(str(action.package)).relative_to(workspace.root)
        built = [*action.key["measured"]["files"], MANIFEST, CONTENTS, CONTRACT]
        names = {str(folder / name) for name in built}
        for limits in inputs.config.validation.methods.values():
            names |= set(limits.examples or ())
        planned = action.key["measured"]["programs"].values()
        names |= {each["golden"][0] for each in planned if "golden" in each}
        baseline = workspace.baseline(str(action.package)).relative_to(workspace.root)
        return {*names, str(baseline), *inputs.quotable}

    def _file(self, name: str) -> Digest:
        """Put a file of the workspace into the store."""
        workspace = self._workspace
        store, content = workspace.store, workspace.find_data(name)
        if content is not None and is_plain(store.blob_path(content)):
            return content
        if content is None or store.put_file(workspace.root / name) != content:
            raise SourceError(f"{name}: changed while the build ran; run again")
        return content

    def _blobs(
        self,
        sources: Mapping[str, MethodSource],
        constants: Mapping[str, Any],
        before: Iterable[Digest],
    ) -> Iterator[Digest]:
        """Yield the blobs of the store that an action needs, beside files of the workspace."""
        for each in sources.values():
            given = (each.content, each.examples, each.reference, *each.batches)
            given = given if each.exported else ()
            yield from filter(None, given)
        for value in constants.values():
            yield from find_blobs(value)
        store = self._workspace.store
        for action in before if store.remote is not None else ():  # or both have one store
            if (entry := store.get(action)) is not None:
                yield from KINDS[entry.key["kind"]].blobs(entry.result)

    def _before(self, action: Action) -> Iterator[Digest]:
        """Yield the actions whose results an action reads."""
        match action.inputs:
            case CompileInputs(quantizes=quantizes):
                yield from (each.digest for each in quantizes.values())
            case LinkInputs(compiles=compiles, family=family):
                of_family = (each for units in family.values() for each in units.values())
                yield from dict.fromkeys([*compiles.values(), *of_family])
            case ValidateInputs():
                state = self._workspace.state(str(action.package))
                yield from state.get("quantize", {}).values()


def _sources(inputs: Any) -> Mapping[str, MethodSource]:
    match inputs:
        case QuantizeInputs(source=source):
            return {"": source}
        case CompileInputs(sources=sources) | ValidateInputs(sources=sources):
            return sources
    return {}


def _configs(inputs: Any) -> Iterable[Any]:
    match inputs:
        case QuantizeInputs(config=config):
            return [config]
        case CompileInputs(configs=configs):
            return configs.values()
        case ValidateInputs(config=config):
            return config.methods.values()
    return ()


def _constants(action: Action) -> dict[str, Any]:
    if action.kind == "link":
        return dict(action.key["constant_methods"])
    if isinstance(action.inputs, ValidateInputs):
        return dict(action.inputs.config.constant_methods)
    return {}


def _is_file(name: str) -> bool:
    """Return whether an input of passes, by its name in keys, is a file of the workspace."""
    return is_inside(name) and not name.startswith(("$", "import ", "lib:"))


def _jsonable(value: Any) -> Any:
    """Return the data of what JSON has no form for: mappings that can't be changed, and secrets."""
    if isinstance(value, Mapping):
        return dict(value)
    return {_SECRET: [value.name, value.value]}


def read_data(text: str, make_secret: Callable[[str, str], Any]) -> Any:
    """Read JSON as `pack` writes it."""
    return json.loads(
        text, object_hook=lambda each: make_secret(*each[_SECRET]) if _SECRET in each else each
    )
