"""Writes weights that several programs of an archive contain only once.

torch's writer shares storages within a program, but writes those of the next program again: an
archive of `prefill` and `decode` had each weight twice. Each program keeps its own table from names
to members, so its reader needs no change. This module can go when torch shares between programs.
Source: `_save_raw_tensors` in `torch/export/pt2_archive/_package.py` of torch 2.13.
"""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
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


class _Content:
    """The bytes of a storage, which become a member of an archive.

    Attributes:
        place: the address of the bytes, or 0 if there are none.
        is_original: whether the bytes are those of the program itself, not a copy from a device.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.place = self.size = 0
        self.is_original = True
        if not _package._is_fake_tensor(tensor) and tensor.data_ptr():
            self.is_original = tensor.device.type == "cpu"
            self._storage = tensor.cpu().untyped_storage()
            self.place, self.size = self._storage.data_ptr(), self._storage.nbytes()

    @cached_property
    def digest(self) -> Digest:
        return hash_bytes(memoryview(self._bytes()).cast("B"))

    def write(self, writer: Any, name: str) -> None:
        """Write the member, straight from the storage: a copy would take as long again."""
        if self.size:
            writer.archive_file.write_record(name, self._storage, self.size)
        else:
            writer.write_bytes(name, b"")

    def _bytes(self) -> Any:
        return (ctypes.c_ubyte * self.size).from_address(self.place)


class _Members:
    """The members of one folder of an archive, by name, for programs written one after another.

    Args:
        holds_storages: whether storages keep their content until the last program is written. They
            are then held, so that no other storage gets the address of one, and hashed only if the
            storage of another program has the same size.
    """

    def __init__(self, holds_storages: bool) -> None:
        self._holds_storages = holds_storages
        self._by_place: dict[int, list[str]] = defaultdict(list)
        self._by_digest: dict[Digest, list[str]] = defaultdict(list)
        self._unhashed: dict[int, dict[str, _Content]] = defaultdict(dict)  # by size

    def find(self, content: _Content, used: set[str]) -> str | None:
        """Return the name of a member with equal bytes that isn't in use, or None."""
        for name in self._by_place.get(content.place, ()):
            if name not in used:
                return name
        for name, other in self._unhashed.pop(content.size, {}).items():
            self._by_digest[other.digest].append(name)
        if not self._by_digest:
            return None
        names = self._by_digest.get(content.digest, ())
        return next((name for name in names if name not in used), None)

    def add(self, name: str, content: _Content) -> None:
        if self._holds_storages and content.is_original:
            self._unhashed[content.size][name] = content
            if content.place:
                self._by_place[content.place].append(name)
        else:
            self._by_digest[content.digest].append(name)


@contextmanager
def sharing_members(holds_storages: bool = False) -> Iterator[None]:
    """Store equal weights of two programs once in an archive that is written within the context.

    Args:
        holds_storages: whether all programs exist, and nothing changes their weights, until the
            context ends. A storage that two of them share is then neither read nor hashed again.
    """
    # By writer and folder: an exporter that yields methods may itself write archives meanwhile.
    members: dict[tuple[Any, str], _Members] = {}

    def save(
        tensors: dict[str, Any],
        program: str,
        writer: Any,
        records: dict[str, PayloadMeta],
        folder: str,
        prefix: str,
        number: int,
    ) -> int:
        earlier = members.setdefault((writer, folder), _Members(holds_storages))
        new: dict[str, _Content] = {}
        used: set[str] = set()
        weights = {program: Weights(tensors)}
        for group in group_weights(weights) if tensors else []:
            content = _Content(get_complete_tensor(group, weights))
            # Two storages of one program are two members, even if equal, or tensors would alias.
            name = earlier.find(content, used)
            if name is None:
                name = f"{prefix}{number}"
                # Later programs continue the numbering of members.
                number += 1
                content.write(writer, os.path.join(folder, name))
                new[name] = content
            used.add(name)
            for _, key in group:
                records[key] = _describe(tensors[key][0], name)
        for name, content in new.items():
            earlier.add(name, content)
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
