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
from collections.abc import Iterator

_HEADER = struct.Struct("<6Q")
_CODEC = bytes.fromhex("30607002 04083f6f 7274787f")
_XML = b"<?xml"

# A type of operator in OpenVINO's own spelling and a number, at the beginning of a name or of one
# of its parts. Names that come from a program are those of torch operators, or its own.
_COUNTED = re.compile(r"(?<![\w.])([A-Z][A-Za-z0-9]*)_([0-9]+)(?![A-Za-z0-9])")
_MODEL = re.compile(r'(<net name="Model)[0-9]+(")')
_LAYER = re.compile(r'(<layer id="[0-9]+" name=")([^"]*)(")')
_FUSED = re.compile(r'(<attribute name="fused_names" version="[0-9]+" value=")([^"]*)(")')


class UnknownBlobError(Exception):
    """These bytes are no blob of the CPU plugin as this module knows it."""


def without_counters(blob: bytes) -> bytes:
    """Return the blob with its counted names numbered anew. Raises UnknownBlobError."""
    try:
        offsets = _HEADER.unpack_from(blob)
    except struct.error as error:
        raise UnknownBlobError("it is too short") from error
    start, size = offsets[4:]
    if start + size != len(blob):
        raise UnknownBlobError("its header does not tell where the model is")
    model = _code(blob[start:])
    if not model.startswith(_XML):
        raise UnknownBlobError("its model is no XML")
    renamed = _code(_renumber(model.decode()).encode())
    return _HEADER.pack(*offsets[:5], len(renamed)) + blob[_HEADER.size : start] + renamed


def read_model(blob: bytes) -> str:
    """Return the XML of the model in a blob."""
    start = _HEADER.unpack_from(blob)[4]
    return _code(blob[start:]).decode()


def _code(text: bytes) -> bytes:
    """Encode plain bytes, or decode encoded ones."""
    key = (_CODEC * (len(text) // len(_CODEC) + 1))[: len(text)]
    return (int.from_bytes(text, "big") ^ int.from_bytes(key, "big")).to_bytes(len(text), "big")


def _renumber(model: str) -> str:
    """Number layers in their order; names of what was fused into one follow in the order in
    which it was made, since such lists are sorted by the old names."""
    numbers: dict[str, int] = {}
    for layer in _LAYER.finditer(model):
        for name in _find_counted(layer.group(2)):
            numbers.setdefault(name, len(numbers))
    fused = {name for each in _FUSED.finditer(model) for name in _find_counted(each.group(2))}
    for name in sorted(fused - numbers.keys(), key=_age):
        numbers[name] = len(numbers)

    def renamed(text: str) -> str:
        return _COUNTED.sub(lambda found: f"{found.group(1)}_{numbers[found.group(0)]}", text)

    def layer_name(found: re.Match[str]) -> str:
        return found.group(1) + renamed(found.group(2)) + found.group(3)

    def fused_names(found: re.Match[str]) -> str:
        names = sorted(renamed(found.group(2)).split(", "))
        return found.group(1) + ", ".join(names) + found.group(3)

    model = _MODEL.sub(r"\g<1>\g<2>", model)
    return _FUSED.sub(fused_names, _LAYER.sub(layer_name, model))


def _find_counted(text: str) -> Iterator[str]:
    return (found.group(0) for found in _COUNTED.finditer(text))


def _age(name: str) -> tuple[int, str]:
    return int(name.rpartition("_")[2]), name
