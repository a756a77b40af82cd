"""Checks Core ML's payloads without Core ML.

Each model must be complete, and its interface must match the package's call. coremltools reads
models on every system.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.backends.entry import CallSizes

_REFERENCE = b"CMJR"  # begins a payload that names the model of several methods
_MODEL = "model.mlpackage/Data/com.apple.CoreML/model.mlmodel"
_COMPILED = "model.mlmodelc"
_METADATA = "metadata.json"


def check_payload(
    method: str,
    payload: bytes,
    named: Mapping[str, bytes],
    inputs: CallSizes,
    outputs: CallSizes,
) -> Iterator[str]:
    """Yield each fault of a delegate's model as a sentence; `Execution` describes the arguments."""
    try:
        payload, joint = _resolve(payload, named)
        files = read_archive(payload)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        yield f"Core ML's payload can't be read: {type(error).__name__}: {error}"
        return
    if any(path.startswith(_COMPILED) for path in files):
        return  # compiled into Apple's own form
    missing = [path for path in (_MODEL, _METADATA) if path not in files]
    if missing:
        yield f"Core ML's payload lacks {', '.join(missing)}"
        return
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model()
    try:
        spec.ParseFromString(files[_MODEL])
        metadata = json.loads(files[_METADATA])
    except Exception as error:  # whatever protobuf raises
        yield f"Core ML's model can't be read: {type(error).__name__}: {error}"
        return
    described = {function.name: function for function in spec.description.functions}
    if joint and method not in described:
        yield f"Core ML's model has no function {method}; it has {', '.join(described)}"
        return
    interface = described[method] if joint else spec.description
    names = metadata["methods"][method] if joint else metadata
    yield from _compare("input", interface.input, names["inputNames"], inputs)
    yield from _compare("output", interface.output, names["outputNames"], outputs)
    yield from _find_lost_weights(spec, files)


def _resolve(payload: bytes, named: Mapping[str, bytes]) -> tuple[bytes, bool]:
    """Return the bytes of a delegate's model, and whether several methods share the model."""
    if not payload.startswith(_REFERENCE):
        return payload, False
    key = json.loads(payload.removeprefix(_REFERENCE))["key"]
    return named[key], True


def read_archive(payload: bytes) -> dict[str, bytes]:
    """Return the files of an archive by their paths in its folder.

    The archive has the form of `reproducible.archive`. Raises ValueError, KeyError, IndexError or
    TypeError if it is invalid.
    """
    end = 1 << 16
    while True:
        text = payload[: -end - 1 : -1].decode("utf-8", "replace")
        try:
            table, _ = json.JSONDecoder().raw_decode(text)
            break
        except ValueError:
            if end >= len(payload):
                raise
            end *= 8
    nodes = table["nodes"]
    files: dict[str, bytes] = {}

    def add(number: int, path: str) -> None:
        node = nodes[number]
        if not node["kind"]:
            region = node["dataRegion"]
            content = payload[region["offset"] : region["offset"] + region["size"]]
            if len(content) < region["size"]:
                raise ValueError(
                    f"{path} ends after {len(content)} bytes of {region['size']}"
                )
            files[path] = content
        for name, child in node["children"].items():
            add(child, f"{path}/{name}" if path else name)

    add(len(nodes) - 1, "")
    return files


def _compare(
    kind: str, features: Any, names: Sequence[str], expected: CallSizes
) -> Iterator[str]:
    """Yield how a model's features differ from its metadata and from the package's call.

    The delegate passes features by the names in the metadata; the call determines their sizes.
    """
    model_names = [feature.name for feature in features]
    if model_names != list(names):
        yield f"Core ML's model has the {kind}s {model_names}, but its metadata lists {list(names)}"
        return
    number = len(model_names)
    if number != len(expected):
        yield f"Core ML's model has {number} {kind}s, and the package's call {len(expected)}"
        return
    for feature, sizes in zip(features, expected, strict=True):
        array = feature.type.multiArrayType
        shape = tuple(array.shape)
        if sizes is None or not shape or array.WhichOneof("ShapeFlexibility"):
            continue
        if shape != (sizes or (1,)):
            yield (
                f"Core ML's {kind} {feature.name} has the shape {list(shape)}, and the package's "
                f"call {list(sizes)}"
            )


def _find_lost_weights(spec: Any, files: dict[str, bytes]) -> Iterator[str]:
    """Yield a fault for each weights file that the model refers to beyond the payload's data."""
    folder = _MODEL.rpartition("/")[0]
    reported = set()
    for function in spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for operation in block.operations:
                blob = operation.attributes["val"].blobFileValue
                path = blob.fileName.replace("@model_path", folder)
                if (
                    path
                    and blob.offset >= len(files.get(path, b""))
                    and path not in reported
                ):
                    reported.add(path)
                    yield f"Core ML's payload lacks weights: {path} at {blob.offset}"
