"""Writes weights that several programs of an archive contain only once.

torch's writer shares storages within a program, but writes those of the next program again: an
archive of `prefill` and `decode` had each weight twice. Each program keeps its own table from names
to members, so its reader needs no change. This module can go when torch shares between programs.
Source: `_save_raw_tensors` in `torch/export/pt2_archive/_package.py` of torch 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._export.serde.schema import PayloadMeta
from torch._export.serde.serialize import serialize_tensor_meta
from torch.export.pt2_archive import _package
from torch.export.pt2_archive._package_weights import (
    Weights,
    get_complete_tensor,
    group_weights,
)
from torch.nn import Parameter

from pipeline.program.patching import replaced
from pipeline.store.digest import Digest, hash_bytes

# The names of the members that a writer wrote, by writer, folder and the digest of their bytes: an
# exporter that yields methods may itself write archives meanwhile.
_Members = dict[tuple[Any, str, Digest], list[str]]


@contextmanager
def sharing_members() -> Iterator[None]:
    """Store equal weights of two programs once in an archive that is written within the context."""
    members: _Members = {}

    def save(
        tensors: dict[str, Any],
        program: str,
        writer: Any,
        records: dict[str, PayloadMeta],
        folder: str,
        prefix: str,
        number: int,
    ) -> int:
        used: set[str] = set()
        weights = {program: Weights(tensors)}
        for group in group_weights(weights) if tensors else []:
            content = _package._get_raw_tensor_bytes(
                get_complete_tensor(group, weights)
            )
            names = members.setdefault((writer, folder, hash_bytes(content)), [])
            # Two storages of one program are two members, even if equal, or tensors would alias.
            name = next((name for name in names if name not in used), None)
            if name is None:
                name = f"{prefix}{number}"
                # Later programs continue the numbering of members.
                number += 1
                writer.write_bytes(os.path.join(folder, name), content)
                names.append(name)
            used.add(name)
            for _, key in group:
                records[key] = _describe(tensors[key][0], name)
        return number

    with replaced(_package, "_save_raw_tensors", lambda _: save):
        yield


def _describe(tensor: Tensor, member: str) -> PayloadMeta:
    return PayloadMeta(
        path_name=member,
        is_param=isinstance(tensor, Parameter),
        use_pickle=False,
        tensor_meta=serialize_tensor_meta(tensor),
    )
