"""Reads files of `torch.save`, even from strangers: tensors and containers of them.

`torch.load(weights_only=True)` runs no code, but it trusts sizes: a storage of 4 bytes that claims
37 GiB is read beyond its end. Here a storage must have as many bytes as its member.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import IO, Any

import torch
from torch import _weights_only_unpickler
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pipeline.program.archive_reader import EXPANDED
from pipeline.program.stored_zip import StoredZip

_LARGEST_PICKLE = 1 << 28  # bytes, without the tensors
_MOST_VALUES = 1_000_000
_MAPPED_FROM = 1 << 20  # bytes


def load_storage(members: StoredZip, name: str) -> torch.UntypedStorage:
    """Read a member into memory with torch's alignment, since kernels depend on alignment.

    The storage can't be resized, so no tensor can extend beyond it.
    """
    array = torch.empty(members.size(name), dtype=torch.uint8).numpy()
    members.read_into(name, memoryview(array))
    return torch.from_numpy(array).untyped_storage()


def load_tensor_file(file: IO[bytes]) -> Any:
    """Return the value in a file of `torch.save`: tensors, numbers, strings and containers of them.

    Raises:
        ValueError: the file is damaged, or claims more bytes than it has.
        pickle.UnpicklingError: the file holds other objects, which aren't unpickled.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = StoredZip(archive)
            data = io.BytesIO(members.read("data.pkl", _LARGEST_PICKLE))
            unpickler = _weights_only_unpickler.Unpickler(data, encoding="utf-8")
            unpickler.persistent_load = _Storages(members).load  # type: ignore[method-assign]
            value = unpickler.load()
            _check_values(value)
            return value
    except (ValueError, pickle.UnpicklingError):
        raise
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{error}; save it again with torch.save and its defaults"
        ) from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except Exception as error:  # the unpickler raises whatever damaged bytes lead it to
        first_line = str(error).strip().split("\n")[0]
        raise ValueError(f"{type(error).__name__}: {first_line}") from error


def map_storage(members: StoredZip, name: str) -> torch.UntypedStorage:
    """Map a member if it is large and aligned, else read it.

    Writing to the storage doesn't change the file. The caller must keep the file unchanged.
    """
    size = members.size(name)
    file_and_begin = members.map(name) if size >= _MAPPED_FROM else None
    if file_and_begin is None:
        return load_storage(members, name)
    file, begin = file_and_begin
    tensor = torch.frombuffer(
        file,
        dtype=torch.uint8,
        count=size,
        offset=begin,
    )
    return tensor.untyped_storage()


class _Storages:
    """The storages of a file by key. Each is read once, since several tensors may share it."""

    def __init__(self, members: StoredZip) -> None:
        self._members = members
        self._storages: dict[str, torch.UntypedStorage] = {}

    def load(self, persistent_id: tuple[Any, ...]) -> torch.storage.TypedStorage:
        """Return the storage that a persistent id of the pickle refers to."""
        kind, storage_type, key, _, count = persistent_id
        is_untyped = storage_type is torch.UntypedStorage
        dtype = torch.uint8 if is_untyped else storage_type.dtype
        if kind != "storage" or not isinstance(key, str) or type(count) is not int:
            raise ValueError(f"has a reference to {kind!a}, which is not a storage")
        name = f"data/{key}"
        size = self._members.size(name)
        claimed_size = count * dtype.itemsize
        if claimed_size != size:
            raise ValueError(
                f"has a storage of {claimed_size} bytes, but contains {size}"
            )
        if key not in self._storages:
            self._storages[key] = load_storage(self._members, name)
        return torch.storage.TypedStorage(
            wrap_storage=self._storages[key], dtype=dtype, _internal=True
        )


def _check_values(root: Any) -> None:
    """Raise ValueError if a few bytes expand to more values than fit into memory."""
    waiting = [root]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return
        value = waiting.pop()
        # Tensors inside a subclass are counted separately; the outer sizes cost no memory.
        if is_traceable_wrapper_subclass(value):
            names, _ = value.__tensor_flatten__()
            waiting += [getattr(value, name) for name in names]
        elif isinstance(value, torch.Tensor):
            _check_tensor(value)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
    raise ValueError(f"holds more than {_MOST_VALUES} values")


def _check_tensor(tensor: torch.Tensor) -> None:
    stored = tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else 0
    if tensor.numel() * tensor.element_size() > max(stored, EXPANDED):
        raise ValueError(
            f"has a tensor of the shape {tuple(tensor.shape)}, but {stored} bytes"
        )
