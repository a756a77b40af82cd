"""The text that a partition is compiled to and that the runtime reads. No torch.

One instruction a line defines the next value, `v0`, `v1` and so on, with its dtype and sizes:

    add_sub 1
    input v0 float32[2,?]
    constant v1 float32[64,1] data add_sub/1f5a...
    sub v2 float32[2,?] @3 = v0 v1 alpha=2
    cast v3 float64[2,?] @5 = v2
    output v3
    end 7 1c291ca3

`?` is a size that is known only when it runs, `@3` the debug handle of the node that a line was
made of (`@-`: none), and `add_sub/1f5a...` the key of named data. The last line is a checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

FORMAT = "add_sub 1"
# By torch's names, those that both ExecuTorch's portable kernels and eager mode add.
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
)  # fmt: skip


def type_of(tensor: Any) -> str:
    """Return the dtype and sizes of a tensor, such as "float32[2,?]"."""
    sizes = ",".join(str(size) if type(size) is int else "?" for size in tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]"


def seal(instructions: Iterable[str]) -> bytes:
    """Return the payload of instructions; the first one stands on line 2."""
    lines = [FORMAT, *instructions]
    body = "".join(f"{line}\n" for line in lines).encode("ascii")
    return body + b"end %d %08x\n" % (len(lines) + 1, zlib.crc32(body))
