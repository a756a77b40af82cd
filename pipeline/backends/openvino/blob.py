"""The blobs that OpenVINO's CPU plugin exports, with names that do not depend on what the process
made before.

OpenVINO numbers every node and every model that a process makes, and names those that have no name
of their own by it: `Constant_17`, `Model3`. The names stand in the exported model, so a second
blob of the same partition differs from the first one. Nothing reads them when a blob is loaded, so
they are numbered anew here, by their order in the model.

A blob begins with six 64-bit numbers, the offset and the size of each of its three parts: a custom
header, the constants, and the model as XML, encoded (openvino: src/core/dev_api/openvino/
xml_util/xml_serialize_util.hpp and src/common/util/src/common_util.cpp, `codec_xor`). Found by
comparing blobs; tests/backends/test_openvino.py holds this to the installed version.
"""

from __future__ import annotations

import re
import struct

_HEADER = struct.Struct("<6Q")
_CODEC = bytes.fromhex("30607002 04083f6f 7274787f")
_XML = b"<?xml"

# A type of operator in OpenVINO's own spelling and a number, at the beginning of a name or of one
# of its parts. Names that come from a program are those of torch operators, or its own.
_COUNTED = re.compile(r"(?<![\w.])[A-Z][A-Za-z0-9]*_[0-9]+(?![A-Za-z0-9])")
_MODEL = re.compile(r'(<net name="Model)[0-9]+(?=")')
_LAYER = re.compile(r'(<layer id="[0-9]+" name=")([^"]*)(?=")')
_FUSED = re.compile(r'(<attribute name="fused_names" version="[0-9]+" value=")([^"]*)(?=")')


class UnknownBlobError(Exception):
    """These bytes are no blob of the CPU plugin as this module knows it."""


def without_counters(blob: bytes) -> bytes:
    """Return the blob with its counted names numbered anew. Raises UnknownBlobError."""
    if len(blob) < _HEADER.size:
        raise UnknownBlobError("it is too short")
    *offsets, start, size = _HEADER.unpack_from(blob)
    if start + size != len(blob):
        raise UnknownBlobError("its header does not tell where the model is")
    model = _code(blob[start:])
    if not model.startswith(_XML):
        raise UnknownBlobError("its model is no XML")
    renamed = _code(_renumber(model.decode()).encode())
    return _HEADER.pack(*offsets, start, len(renamed)) + blob[_HEADER.size : start] + renamed


def _code(text: bytes) -> bytes:
    """Encode plain bytes, or decode encoded ones."""
    key = (_CODEC * (len(text) // len(_CODEC) + 1))[: len(text)]
    return (int.from_bytes(text, "big") ^ int.from_bytes(key, "big")).to_bytes(len(text), "big")


def _renumber(model: str) -> str:
    """Number layers in their order; names of what was fused into one follow in the order in
    which it was made, since such lists are sorted by the old names."""
    layers = dict.fromkeys(n for each in _LAYER.finditer(model) for n in _COUNTED.findall(each[2]))
    fused = {name for each in _FUSED.finditer(model) for name in _COUNTED.findall(each[2])}
    others = sorted(fused - layers.keys(), key=lambda name: (int(name.rpartition("_")[2]), name))
    numbers = {name: number for number, name in enumerate([*layers, *others])}

    def renamed(text: str) -> str:
        return _COUNTED.sub(lambda it: f"{it[0].rpartition('_')[0]}_{numbers[it[0]]}", text)

    def fused_names(found: re.Match[str]) -> str:
        return found[1] + ", ".join(sorted(renamed(found[2]).split(", ")))

    model = _LAYER.sub(lambda found: found[1] + renamed(found[2]), _MODEL.sub(r"\1", model))
    return _FUSED.sub(fused_names, model)
