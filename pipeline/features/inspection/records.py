"""The shapes of a package's list of contents, which `contents.json` and reports hold.

It is a function of the bytes of the files and the names of constants; `tensors`, `shared` and
`twice` have the largest first.
"""

from __future__ import annotations

from typing import Literal

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import TypedDict

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


_DELEGATE = (
    {"backend": str, "index": int, "size": int, "digest": str},
    "A delegate: its index in its method, and the bytes of its payload.",
)
_ARENA = (
    {"arena": int, "size": int},
    "A block of memory that the runtime gives to a method's tensors, in bytes.",
)
_METHOD_CONTENTS = (
    {
        "instructions": int,
        "delegates": [_DELEGATE],
        "planned_memory": [_ARENA],
        "constants": (int, "Bytes of tensors of portable operators."),
        "delegated": (int, "Bytes of payloads, and of delegates' named data."),
    },
    "The needs of a method; what methods share counts for each.",
)
_SHARED = (
    {"what": str, "size": int, "methods": list[str]},
    "Data that several methods use and the package holds once.",
)
_TWICE = (
    {"what": str, "size": int, "times": int, "where": list[str], "advice": str},
    "Data stored at each of `times` places, and how to store it once.",
)
CONTENTS_OUTLINE = {
    "size": int,
    "segments": list[SegmentRecord],
    "methods": {str: _METHOD_CONTENTS},
    "tensors": list[TensorRecord],
    "shared": [_SHARED],
    "twice": [_TWICE],
}
REPORT_FIELD = (CONTENTS_OUTLINE, None)
