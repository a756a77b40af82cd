"""Packs requested actions, and stores the files that they need as blobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

from pipeline.features.cluster.forms import Json
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.plan.reads import is_inside
from pipeline.plan.requests import write_request
from pipeline.program.constant_values import find_blobs
from pipeline.store.digest import Digest, read_pieces
from pipeline.store.errors import SourceError
from pipeline.store.files import CONTENTS, CONTRACT, MANIFEST, is_plain
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog


class Packer:
    """Packs the actions of a workspace.

    With `always`, workers perform them even if the store has their results.
    """

    def __init__(self, workspace: Workspace, always: bool) -> None:
        self._workspace = workspace
        self._always = always
        self._lock = threading.Lock()

    def pack(self, action: Action) -> str:
        """Return an action as JSON, after putting the files that it needs into the store.

        The files are also pushed to the store's remote. Raises SourceError if a file changed or
        can't be read any more, and OSError.
        """
        with self._lock:
            parcel = self._collect(action)
        blobs = [*parcel["files"].values(), *parcel["blobs"]]
        self._workspace.store.share(parcel["results"], blobs)  # may take long
        return json.dumps(parcel)

    def _collect(self, action: Action) -> Json:
        workspace = self._workspace
        files = {
            name: self._store_file(name) for name in sorted(self._find_files(action))
        }
        return {
            "request": write_request(action, workspace.root),
            "build": str(workspace.build.relative_to(workspace.root)),
            "files": files,
            "results": list(action.inputs.results),
            "blobs": [
                *filter(self._is_shared, dict.fromkeys(self._find_blobs(action)))
            ],
            "operators": (list(workspace.operators), workspace.operators_folder),
            "crashes": CrashLog(workspace.logs, str(action.package)).crashes(),
            "always": self._always,
            "fast_lowering": workspace.fast_lowering,
            "refit": workspace.refit,
        }

    def _find_files(self, action: Action) -> Iterator[str]:
        """Yield the paths of the workspace's files that an action reads."""
        root = self._workspace.root
        for name in {*self._named_files(action)}:
            if (root / name).is_file():
                yield name

    def _named_files(self, action: Action) -> Iterator[str]:
        for source in action.inputs.sources.values():
            if not source.exported:
                yield str(source.archive.relative_to(self._workspace.root))
        for config in action.inputs.configs.values():
            for paths in config.files.values():
                yield from paths
        measured = action.key.get("measured", action.key)
        code = [*action.key.get("passes", {}).values()]
        code += measured.get("operator_inputs", {}).values()
        for inputs in code:
            for name, value in inputs.items():
                if value and _is_file(name):
                    yield name
        if isinstance(action.inputs, ValidateInputs):
            yield from self._validated_files(action)

    def _validated_files(self, action: Action[ValidateInputs]) -> Iterator[str]:
        """Yield the files that only a validation reads.

        These are the package, examples, recorded outputs, the baseline and the files that its
        report quotes.
        """
        workspace, inputs = self._workspace, action.inputs
        folder = workspace.package(str(action.package)).relative_to(workspace.root)
        for name in (*inputs.files, MANIFEST, CONTENTS, CONTRACT):
            yield str(folder / name)
        for limits in inputs.config.validation.methods.values():
            yield from limits.examples or ()
        yield from (path for path, _ in inputs.golden.values())
        yield str(workspace.baseline(str(action.package)).relative_to(workspace.root))
        yield from inputs.quoted

    def _store_file(self, name: str) -> Digest:
        """Put a file of the workspace into the store, and return its digest."""
        workspace = self._workspace
        store = workspace.store
        content = workspace.find_data(name)
        if content is not None and is_plain(store.blob_path(content)):
            return content
        if content is not None:
            with store.writer() as file:
                for piece in read_pieces(workspace.root / name):
                    file.write(piece)
            if file.digest == content:
                return content
        raise SourceError(f"{name}: changed while the build ran; run again")

    def _find_blobs(self, action: Action) -> Iterator[Digest]:
        """Yield the blobs of the store that an action needs in addition to files."""
        for source in action.inputs.sources.values():
            if source.exported:
                single = (source.content, source.examples, source.reference)
                yield from filter(None, (*single, *source.batches))
        for value in _find_constants(action.inputs):
            yield from find_blobs(value)
        store = self._workspace.store
        if store.remote is None:  # both sides share one store
            return
        for digest in action.inputs.results:
            entry = store.get(digest)
            if entry is not None:
                yield from KINDS[entry.key["kind"]].blobs(entry.result)

    def _is_shared(self, blob: Digest) -> bool:
        """Return whether workers must find a blob: in the remote, or in the store that they share.

        Without a remote, a blob that was evicted since the plan was made is made again.
        """
        store = self._workspace.store
        return store.remote is not None or is_plain(store.blob_path(blob))


def _find_constants(inputs: Any) -> Iterator[Any]:
    """Yield the values of constant methods."""
    if isinstance(inputs, LinkInputs):
        yield from (value for _, value in inputs.constant_methods)
    elif isinstance(inputs, ValidateInputs):
        yield from inputs.config.constant_methods.values()


def _is_file(name: str) -> bool:
    """Return whether an input of passes, by its name in keys, is a file of the workspace."""
    return is_inside(name) and not name.startswith(("$", "import ", "lib:"))
