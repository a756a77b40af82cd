"""The shapes of a package's manifest and of the list of its contents."""

from __future__ import annotations

from typing import Any, Literal

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import TypedDict

from pipeline.store.compiled import (
    METHOD_FACTS,
    Blob,
    Delegation,
    OperatorLibrary,
)
from pipeline.store.digest import Digest
from pipeline.store.forms import FileName
from pipeline.store.quantized import QuantizationFacts

SegmentKind = Literal[
    "program", "constants", "delegate", "named_data", "mutable", "padding"
]


class SegmentRecord(TypedDict):
    """A segment of a file; all of them cover it in order, from its first byte to its last.

    `kind` is program (the flatbuffer with its header: plans, and where everything stands),
    constants (tensors of portable operators), delegate (a payload), named_data (what delegates or
    a `.ptd` file hold by name), mutable (initial values of buffers) or padding. `name` is the
    qualified name of a tensor of named data, else its key. `backend` is that of a payload.
    `methods` are those that use it, as far as the file says. `digest` is empty for padding.
    """

    file: str
    kind: SegmentKind
    name: str
    offset: int
    size: int
    digest: str
    methods: list[str]
    backend: str | None


class DelegateBlob(TypedDict):
    """A delegate: its `index` in its method, and the `size` of its payload in bytes."""

    backend: str
    index: int
    size: int
    digest: str


class ArenaRecord(TypedDict):
    """A block of memory that the runtime gives to a method's tensors, in bytes."""

    arena: int
    size: int


class MethodContents(TypedDict):
    """The needs of a method: `constants` are bytes of tensors of portable operators, `delegated`
    those of payloads and of delegates' named data; what methods share counts for each."""

    instructions: int
    delegates: list[DelegateBlob]
    planned_memory: list[ArenaRecord]
    constants: int
    delegated: int


class TensorRecord(TypedDict):
    """A tensor in a package.

    `name` is empty where the bytes are of no tensor that the programs hold; `key` is that of named
    data. dtype, shape and `size` are as stored, except for `where` delegate: the form of a tensor
    in a payload is not known, so they are those of the program. Named data whose bytes are a weight
    in another layout have the program's dtype and shape.
    """

    name: str
    key: str
    dtype: str
    shape: list[int]
    size: int
    file: str
    where: str
    methods: list[str]


class SharedRecord(TypedDict):
    """Data that several methods use and the package holds once."""

    what: str
    size: int
    methods: list[str]


class TwiceRecord(TypedDict):
    """Data stored at each of `times` places, and how to store it once."""

    what: str
    size: int
    times: int
    where: list[str]
    advice: str


class ContentsRecord(TypedDict):
    """The contents of a package, a function of the bytes of its files and the names of constants;
    `tensors`, `shared` and `twice` have the largest first."""

    size: int
    segments: list[SegmentRecord]
    methods: dict[str, MethodContents]
    tensors: list[TensorRecord]
    shared: list[SharedRecord]
    twice: list[TwiceRecord]


# Of a method, of whose facts older versions wrote fewer.
_METHOD_MANIFEST = {
    **{f"{name.removesuffix('?')}?": form for name, form in METHOD_FACTS.items()},
    "program": str,
    "unit": str,
    "lowering": dict[str, Any],
    "quantized": (str, None),
    "delegation": Delegation,
    "quantization?": QuantizationFacts,
}
# The manifest of a package; of its family, `share` has patterns by file.
MANIFEST_OUTLINE = {
    "format": Literal[1],
    "package": str,
    "model": str,
    "target": (str, None),
    "action?": Digest,
    "toolchain": dict[str, str],
    "host": (dict[str, Any], None),
    "emit": dict[str, Any],
    "constant_methods": dict[str, Any],
    "metadata?": dict[str, Any],
    "family?": {"name": str, "base": (str, None), "share": dict[str, list[str]]},
    "order": list[str],
    "operators?": list[OperatorLibrary],
    "methods": {str: _METHOD_MANIFEST},
    "objects": dict[str, Any],
    "files": {FileName: Blob},
    "etrecord?": Blob,
}
