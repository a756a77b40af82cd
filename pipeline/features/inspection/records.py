"""The shape of a package's contents, in `contents.json` and in reports.

It depends only on the bytes of the files and the names of constants. `tensors`, `shared` and
`twice` are sorted by size, the largest first.
"""

from __future__ import annotations

from typing import Literal

# Python 3.11's TypedDict doesn't give pydantic everything that it needs for a schema.

SegmentKind = Literal[
    "program", "constants", "delegate", "named_data", "mutable", "padding"
]


_SEGMENT = (
    {
        "file": str,
        "kind": SegmentKind,
        "name": (str, "The qualified name of a tensor of named data, else its key."),
        "offset": int,
        "size": int,
        "digest": (str, "Empty for padding."),
        "methods": (list[str], "Those that use it, as far as the file says."),
        "backend": (str, None, "That of a payload."),
    },
    """A segment of a file; all of them cover it in order, from its first byte to its last.

`kind` is program (the flatbuffer with its header: plans, and where everything stands), constants
(tensors of portable operators), delegate (a payload), named_data (what delegates or a `.ptd` file
hold by name), mutable (initial values of buffers) or padding.""",
)
_TENSOR = (
    {
        "name": (str, "Empty where the bytes are of no tensor that the programs hold."),
        "key": (str, "That of named data."),
        "dtype": str,
        "shape": list[int],
        "size": int,
        "file": str,
        "where": str,
        "methods": list[str],
    },
    """A tensor in a package.

`dtype`, `shape` and `size` are as stored, except for `where` delegate: the form of a tensor in a
payload is not known, so they are those of the program. Named data whose bytes are a weight in
another layout have the program's dtype and shape.""",
)
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
    "segments": [_SEGMENT],
    "methods": {str: _METHOD_CONTENTS},
    "tensors": [_TENSOR],
    "shared": [_SHARED],
    "twice": [_TWICE],
}
REPORT_FIELD = (CONTENTS_OUTLINE, None)
