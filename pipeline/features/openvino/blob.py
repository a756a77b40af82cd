"""Renumbers names in blobs of OpenVINO's CPU plugin, so that equal partitions have equal blobs.

OpenVINO counts every node and every model that a process creates, and names the unnamed ones by
their count: `Constant_17`, `Model3`. The exported model keeps these names, so a second blob of the
same partition differs from the first. Nothing reads the names when a blob is loaded, so this module
renumbers them by their order in the model.

A blob begins with six 64-bit numbers, the offset and the size of each of its three parts: a custom
header, the constants, and the model as encoded XML (openvino: src/core/dev_api/openvino/
xml_util/xml_serialize_util.hpp and src/common/util/src/common_util.cpp, `codec_xor`). This was
found by comparing blobs; tests/features/openvino/test_openvino.py checks it against the installed
version.
"""

from __future__ import annotations

import re
import struct

_HEADER = struct.Struct("<6Q")
_CODEC = bytes.fromhex("30607002 04083f6f 7274787f")
_XML = b"<?xml"

# An operator type as OpenVINO spells it and a number, at the start of a name or of a part of it.
# Names from a program look different: they are torch's operators, or chosen by the program.
_COUNTED = re.compile(r"(?<![\w.])[A-Z][A-Za-z0-9]*_[0-9]+(?![A-Za-z0-9])")
_MODEL = re.compile(r'(<net name="Model)[0-9]+(?=")')
_LAYER = re.compile(r'(<layer id="[0-9]+" name=")([^"]*)(?=")')
_FUSED = re.compile(
    r'(<attribute name="fused_names" version="[0-9]+" value=")([^"]*)(?=")'
)


class UnknownBlobError(Exception):
    """The bytes are not a blob of OpenVINO's CPU plugin in the format that this module knows."""


def without_counters(blob: bytes) -> bytes:
    """Return the blob with its counted names renumbered.

    Raises UnknownBlobError if it is invalid.
    """
    if len(blob) < _HEADER.size:
        raise UnknownBlobError("it is too short")
    *offsets, start, size = _HEADER.unpack_from(blob)
    if start + size != len(blob):
        raise UnknownBlobError("its header does not contain the model's offset")
    model = _code(blob[start:])
    if not model.startswith(_XML):
        raise UnknownBlobError("its model is not XML")
    renamed = _code(_renumber(model.decode()).encode())
    return (
        _HEADER.pack(*offsets, start, len(renamed))
        + blob[_HEADER.size : start]
        + renamed
    )


def _code(text: bytes) -> bytes:
    """Encode plain bytes or decode encoded ones; both are an XOR with the repeated codec."""
    repeats = len(text) // len(_CODEC) + 1
    key = (_CODEC * repeats)[: len(text)]
    code = int.from_bytes(text, "big") ^ int.from_bytes(key, "big")
    return code.to_bytes(len(text), "big")


def _renumber(model: str) -> str:
    """Number the layers in order, then the names that were fused into layers.

    Fused names are numbered in the order of their creation, since lists of them are sorted by the
    old names.
    """
    layers: dict[str, None] = {}
    for match in _LAYER.finditer(model):
        layers.update(dict.fromkeys(_COUNTED.findall(match[2])))
    fused: set[str] = set()
    for match in _FUSED.finditer(model):
        fused.update(_COUNTED.findall(match[2]))
    fused_only = sorted(fused - layers.keys(), key=_counter_and_name)
    numbers = {name: number for number, name in enumerate([*layers, *fused_only])}

    def rename(match: re.Match[str]) -> str:
        name = match[0]
        kind = name.rpartition("_")[0]
        return f"{kind}_{numbers[name]}"

    def rename_layer(match: re.Match[str]) -> str:
        return match[1] + _COUNTED.sub(rename, match[2])

    def rename_fused(match: re.Match[str]) -> str:
        names = _COUNTED.sub(rename, match[2]).split(", ")
        return match[1] + ", ".join(sorted(names))

    model = _MODEL.sub(r"\1", model)
    model = _LAYER.sub(rename_layer, model)
    return _FUSED.sub(rename_fused, model)


def _counter_and_name(name: str) -> tuple[int, str]:
    return int(name.rpartition("_")[2]), name
