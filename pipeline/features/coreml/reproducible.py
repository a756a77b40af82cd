"""Makes Core ML's preprocess function return the same bytes for the same programs.

Upstream (executorch/backends/apple/coreml/compiler/coreml_preprocess.py, coremltools) gives every
model a random identifier and a package's manifest random ids, writes the date of the conversion,
and serializes protobuf's maps in hash order and files in the order of the folder. Within
`reproducible` the identifier and the ids derive from the content, the date is left out, and maps
are sorted by key and files by name. The meaning of a package doesn't change.

A device caches compiled models by their identifier (ETCoreMLModelManager.mm), so models that differ
in anything must have different identifiers, while equal models may share one.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.features.coreml.derived_sizes import with_derived_ranges
from pipeline.program.patching import replaced
from pipeline.store.digest import hash_bytes
from pipeline.store.errors import PipelineError

_log = logging.getLogger(__name__)
_METADATA, _MANIFEST, _MODEL = "metadata.json", "Manifest.json", "*.mlmodel"
_DATE = "com.github.apple.coremltools.conversion_date"
_OPTION = "multimethod_weight_sharing_strategy"
_SINGLE = ("ios15", "ios16", "ios17")  # targets whose models have one function
_REFERENCE = b"CMJR"  # begins a payload that names the model of several methods


@contextmanager
def reproducible() -> Iterator[None]:
    """Make `CoreMLBackend` return the same bytes for the same programs within the context.

    Unsupported combinations are explained in terms of configs.
    """
    from executorch.backends.apple.coreml.compiler import coreml_preprocess as upstream

    identifiers: dict[str, str] = {}
    flattener = SimpleNamespace(
        flatten_directory_contents=partial(_flatten, identifiers)
    )

    def make(original: Any) -> Any:
        def preprocess_multimethod(
            cls: type[Any],
            programs: Mapping[str, Sequence[Any]],
            specs: Mapping[str, Sequence[Any]],
        ) -> dict[str, list[Any]]:
            _check_sharing(cls, programs, specs)
            with with_derived_ranges(chain.from_iterable(programs.values())):
                results = original.__func__(cls, programs, specs)
            renamed = {}
            for method, method_results in results.items():
                renamed[method] = [
                    _rename(result, identifiers) for result in method_results
                ]
            return renamed

        return classmethod(preprocess_multimethod)

    with (
        replaced(upstream.CoreMLBackend, "preprocess_multimethod", make),
        replaced(upstream, "executorchcoreml", lambda original: flattener),
    ):
        yield


def _check_sharing(
    backend: type[Any],
    programs: Mapping[str, Sequence[Any]],
    specs: Mapping[str, Sequence[Any]],
) -> None:
    """Warn if methods are joined in another way than their configs say.

    Upstream applies the first method's strategy to all, and silently raises the deployment target
    of joined methods to iOS 18. It fails on methods with different numbers of partitions, for which
    this function raises PipelineError.
    """
    strategy = backend.multimethod_weight_sharing_strategy_from_compile_specs
    strategies = {
        method: strategy(method_specs[0]).value
        for method, method_specs in specs.items()
    }
    if len(set(strategies.values())) > 1:
        _log.warning(
            "coreml: %s of the first method applies to all methods, but they differ: %s",
            _OPTION,
            _list_values(strategies),
        )
    if len(programs) < 2 or next(iter(strategies.values())) == "disabled":
        return
    counts = {method: len(partitions) for method, partitions in programs.items()}
    if len(set(counts.values())) > 1:
        raise PipelineError(
            "coreml: methods share weights partition by partition, but the numbers of partitions "
            f"differ: {_list_values(counts)}; set `{_OPTION}: disabled` in every method"
        )
    old_targets = {}
    for method, method_specs in specs.items():
        target = backend.min_deployment_target_from_compile_specs(method_specs[0])
        if target and target.name.lower() in _SINGLE:
            old_targets[method] = target.name.lower()
    if old_targets:
        _log.warning(
            "coreml: methods that share weights need ios18 or later, which they get: %s; raise "
            "minimum_deployment_target, or set `%s: disabled` in every method",
            _list_values(old_targets),
            _OPTION,
        )


def _list_values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _rename(result: Any, identifiers: Mapping[str, str]) -> Any:
    """Return a result that refers to its model by its new identifier."""
    data, payload = result.data_store_output, result.processed_bytes
    if data is None or not payload.startswith(_REFERENCE):
        return result
    names = {f"coreml_{old}": f"coreml_{new}" for old, new in identifiers.items()}
    reference = json.loads(payload.removeprefix(_REFERENCE))
    reference["key"] = names[reference["key"]]
    return replace(
        result,
        processed_bytes=_REFERENCE + json.dumps(reference).encode(),
        data_store_output=replace(
            data, pte_data={names[key]: entry for key, entry in data.pte_data.items()}
        ),
    )


def _flatten(identifiers: dict[str, str], path: str) -> bytes:
    """Return the folder of a model and its metadata as one payload.

    The new identifier is recorded under the old one. Replaces upstream's
    `flatten_directory_contents`.
    """
    from coremltools.proto import Model_pb2

    folder = Path(path)
    for manifest in folder.rglob(_MANIFEST):
        _fix_manifest(manifest)
    for file in folder.rglob(_MODEL):
        model = Model_pb2.Model()
        model.ParseFromString(file.read_bytes())
        model.description.metadata.userDefined.pop(_DATE, None)
        file.write_bytes(model.SerializeToString(deterministic=True))
    metadata_file = folder / _METADATA
    metadata = json.loads(metadata_file.read_text())
    random = metadata["identifier"]
    metadata_file.write_text(json.dumps(metadata | {"identifier": ""}))
    content = uuid.uuid5(uuid.NAMESPACE_URL, hash_bytes(archive(folder)))
    identifiers[random] = f"executorch_{content}"
    metadata_file.write_text(json.dumps(metadata | {"identifier": identifiers[random]}))
    return archive(folder)


def _fix_manifest(path: Path) -> None:
    """Replace the random ids of a model package's items with ids derived from their paths."""
    manifest = json.loads(path.read_text())
    items = sorted(
        manifest["itemInfoEntries"].items(), key=lambda item: item[1]["path"]
    )
    ids = {
        old: str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])) for old, item in items
    }
    manifest["itemInfoEntries"] = {ids[old]: item for old, item in items}
    manifest["rootModelIdentifier"] = ids[manifest["rootModelIdentifier"]]
    path.write_text(json.dumps(manifest, indent=4, sort_keys=True))


def archive(folder: Path) -> bytes:
    """Return the files of a folder in the format that Core ML's delegate reads.

    The files follow each other; then comes a JSON text, reversed, with the offset and the folder of
    each file, every child before its folder
    (backends/apple/coreml/runtime/inmemoryfs/inmemory_filesystem.cpp).
    """
    nodes: list[dict[str, Any]] = []
    data = bytearray()

    def add(path: Path) -> int:
        children: dict[str, int] = {}
        region = {"offset": 0, "size": 0}
        if path.is_dir():
            children = {child.name: add(child) for child in sorted(path.iterdir())}
        else:
            content = path.read_bytes()
            region = {"offset": len(data), "size": len(content)}
            data.extend(content)
        kind = {"kind": int(path.is_dir()), "name": path.name}
        nodes.append({"children": children, "dataRegion": region, **kind})
        return len(nodes) - 1

    add(folder)
    table = json.dumps(
        {"nodes": nodes}, ensure_ascii=False, separators=(",", ":"), sort_keys=True
    )
    return bytes(data) + table.encode()[::-1]
