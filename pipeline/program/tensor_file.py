"""Reads what `torch.save` wrote: tensors, and containers of them, of which nothing is believed.

`torch.load(weights_only=True)` runs no code, but it believes sizes: a storage of 4 bytes that says
that it has 37 GiB is read beyond its end. Here a storage has the bytes that its member has.
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
    """Read a member into memory that is aligned as torch has it, since kernels differ by that.

    The storage can't be resized, so no tensor can be larger than it is.
    """
    array = torch.empty(members.size(name), dtype=torch.uint8).numpy()
    members.read_into(name, memoryview(array))
    return torch.from_numpy(array).untyped_storage()


def load_tensor_file(file: IO[bytes]) -> Any:
    """Return what a file of `torch.save` holds: tensors, numbers, text and containers of them.

    Raises:
        ValueError: it is damaged, or claims more than it has.
        pickle.UnpicklingError: it holds other objects, which are not unpickled.
    """
    try:
        with zipfile.ZipFile(file) as opened:
            members = StoredZip(opened)
            data = io.BytesIO(members.read("data.pkl", _LARGEST_PICKLE))
            unpickler = _weights_only_unpickler.Unpickler(data, encoding="utf-8")
            unpickler.persistent_load = _Storages(members).load  # type: ignore[method-assign]
            value = unpickler.load()
            _check_values(value)
            return value
    except (ValueError, pickle.UnpicklingError):
        raise
    except zipfile.BadZipFile as error:
        raise ValueError(f"{error}; save it anew with torch.save, as it is by default") from error
    except RecursionError as error:
        raise ValueError("is nested too deep") from error
    except Exception as error:  # the unpickler raises whatever damaged bytes lead it to
        what = str(error).strip().split("\n")[0]
        raise ValueError(f"{type(error).__name__}: {what}") from error


def map_storage(members: StoredZip, name: str) -> torch.UntypedStorage:
    """Map a member instead of reading it, where it is large and aligned. Writing to it changes no
    file; that nobody else changes the file is for the caller to see to."""
    size = members.size(name)
    found = members.map(name) if size >= _MAPPED_FROM else None
    if found is None:
        return load_storage(members, name)
    mapped, begin = found
    return torch.frombuffer(mapped, dtype=torch.uint8, count=size, offset=begin).untyped_storage()


class _Storages:
    """The storages of a file by their keys, each read once, since tensors may share one."""

    def __init__(self, members: StoredZip) -> None:
        self._members = members
        self._known: dict[str, torch.UntypedStorage] = {}

    def load(self, saved: tuple[Any, ...]) -> torch.storage.TypedStorage:
        """Return the storage of a pickle's persistent id."""
        kind, storage_type, key, _, count = saved
        is_untyped = storage_type is torch.UntypedStorage
        dtype = torch.uint8 if is_untyped else storage_type.dtype
        if kind != "storage" or not isinstance(key, str) or type(count) is not int:
            raise ValueError(f"has a reference to {kind!a}, which is no storage")
        name = f"data/{key}"
        if count * dtype.itemsize != (size := self._members.size(name)):
            raise ValueError(f"has a storage of {count * dtype.itemsize} bytes, and {size} of them")
        if key not in self._known:
            self._known[key] = load_storage(self._members, name)
        return torch.storage.TypedStorage(
            wrap_storage=self._known[key], dtype=dtype, _internal=True
        )


def _check_values(value: Any) -> None:
    """Raises ValueError for a few bytes that stand for more values than can be had."""
    left = [value]
    for _ in range(_MOST_VALUES):
        if not left:
            return
        each = left.pop()
        if is_traceable_wrapper_subclass(each):
            left += [getattr(each, name) for name in each.__tensor_flatten__()[0]]
        elif isinstance(each, torch.Tensor):
            stored = each.untyped_storage().nbytes() if each.layout == torch.strided else 0
            if each.numel() * each.element_size() > max(stored, EXPANDED):
                raise ValueError(
                    f"has a tensor of the shape {tuple(each.shape)}, and {stored} bytes"
                )
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, (list, tuple)):
            left += each
    raise ValueError(f"holds more than {_MOST_VALUES} values")
