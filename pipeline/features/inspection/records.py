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
        "name": (
            str,
            "The qualified name of a tensor in named data; for other named data, its key.",
        ),
        "offset": int,
        "size": int,
        "digest": (str, "The digest of the bytes; empty for padding."),
        "methods": (list[str], "The methods that are known to use the segment."),
        "backend": (str, None, "The backend of a payload; null for other segments."),
    },
    """A segment of a file. Segments are in file order and cover every byte.

`kind` is program (the flatbuffer with its header: plans, and the offsets of everything else),
constants (tensors of portable operators), delegate (a payload), named_data (data that delegates or
a `.ptd` file store by name), mutable (initial values of buffers) or padding.""",
)
_TENSOR = (
    {
        "name": (
            str,
            "The qualified name; empty if the bytes belong to no tensor of the programs.",
        ),
        "key": (str, "The key of named data."),
        "dtype": str,
        "shape": list[int],
        "size": int,
        "file": str,
        "where": str,
        "methods": list[str],
    },
    """A tensor in a package.

`dtype`, `shape` and `size` are as stored, unless `where` is delegate: the form of a tensor in a
payload is unknown, so they are taken from the program. If named data holds a weight in another
layout, its dtype and shape are also the program's.""",
)
_DELEGATE = (
    {"backend": str, "index": int, "size": int, "digest": str},
    "A delegate: its index in its method, and the size of its payload in bytes.",
)
_ARENA = (
    {"arena": int, "size": int},
    "A block of memory for a method's tensors; `size` is in bytes.",
)
_METHOD_CONTENTS = (
    {
        "instructions": int,
        "delegates": [_DELEGATE],
        "planned_memory": [_ARENA],
        "constants": (int, "The bytes of portable operators' tensors."),
        "delegated": (int, "The bytes of payloads and of delegates' named data."),
    },
    "The needs of a method; shared data counts for each method.",
)
_SHARED = (
    {"what": str, "size": int, "methods": list[str]},
    "Data that several methods use and the package holds once.",
)
_TWICE = (
    {"what": str, "size": int, "times": int, "where": list[str], "advice": str},
    "Data that is stored `times` times, and how to store it once.",
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
