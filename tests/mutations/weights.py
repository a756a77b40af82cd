"""Damages to weights, wherever they are stored: one element, two rows, or NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from random import Random

import numpy as np
from executorch.exir import schema

from .parts import DAMAGES, Culprit, Damage, Parts, culprit_of, users
from .payloads import is_xnnpack, read_graph, tensors

Change = Callable[[np.ndarray, tuple[int, ...], Random], str | None]


def element(values: np.ndarray, sizes: tuple[int, ...], random: Random) -> str | None:
    """Add a tenth of the largest weight to one, or 24 steps if the weights are int8."""
    index = random.randrange(values.size)
    if values.dtype == np.int8:
        values[index] += -24 if values[index] > 0 else 24
    else:
        values[index] += 0.1 * float(np.abs(values[np.isfinite(values)]).max() or 1)
    return f"element {index}"


def row(values: np.ndarray, sizes: tuple[int, ...], random: Random) -> str | None:
    """Swap two adjacent rows."""
    if len(sizes) < 2 or sizes[0] < 2:
        return None
    rows = values.reshape(sizes[0], -1)
    first = random.randrange(sizes[0] - 1)
    rows[[first, first + 1]] = rows[[first + 1, first]]
    return f"rows {first} and {first + 1} exchanged"


def nan(values: np.ndarray, sizes: tuple[int, ...], random: Random) -> str | None:
    """Set a weight to the value that a number becomes in a narrower type that can't hold it."""
    if values.dtype == np.int8:
        return None
    index = random.randrange(values.size)
    values[index] = np.nan
    return f"NaN in element {index}"


@dataclass(frozen=True)
class Weight:
    """A weight that can be changed: `write` replaces its bytes."""

    name: str
    data: bytes
    dtype: str
    sizes: tuple[int, ...]
    culprits: tuple[Culprit, ...]
    write: Callable[[bytes], None]


# Keyed by ExecuTorch's scalar type, and by XNNPACK's.
_DTYPES = {1: "int8", 5: "float16", 6: "float32", 15: "bfloat16"}
_XNNPACK_DTYPES = {
    "xnn_datatype_fp32": "float32", "xnn_datatype_fp16": "float16",
    "xnn_datatype_qint8": "int8", "xnn_datatype_qcint8": "int8",
}  # fmt: skip


def _decode(data: bytes, dtype: str) -> np.ndarray:
    """Return int8 values, or any other type's values as float32."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    values = np.frombuffer(data, dtype)
    return values.copy() if dtype == "int8" else values.astype(np.float32)


def _encode(values: np.ndarray, dtype: str) -> bytes:
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(dtype).tobytes()


def constants(parts: Parts) -> Iterator[Weight]:
    """Yield the weights in the program's constant segment."""
    for index, buffer in list(enumerate(parts.program.constant_buffer))[1:]:
        write = partial(setattr, buffer, "storage")
        yield from _plain(parts, index, f"constant {index}", bytes(buffer.storage), write)


def external(parts: Parts) -> Iterator[Weight]:
    """Yield the weights in `.ptd` files."""
    for stem, payload in parts.ptds.items():
        for key, entry in payload.named_data.items():
            data = bytes(payload.buffers[entry.buffer_index])
            write = partial(payload.buffers.__setitem__, entry.buffer_index)
            yield from _plain(parts, key, f"{key} in {stem}.ptd", data, write)


def _plain(
    parts: Parts, key: int | str, name: str, data: bytes, write: Callable[[bytes], None]
) -> Iterator[Weight]:
    """Yield a constant that instructions read, given the number of its buffer or its name."""
    culprits, found = [], None
    for plan in parts.plans:
        for place, value in enumerate(plan.values):
            if isinstance(value.val, schema.Tensor) and _data_of(value.val) == key:
                found = value.val
                culprits += [culprit_of(plan, number) for number in users(plan, place)]
    if found is None or not culprits or int(found.scalar_type) not in _DTYPES:
        return
    dtype = _DTYPES[int(found.scalar_type)]
    size = prod(found.sizes) * {"int8": 1, "float32": 4}.get(dtype, 2)
    padding = data[size:]
    sizes = tuple(found.sizes[dimension] for dimension in found.dim_order)
    yield Weight(
        name, data[:size], dtype, sizes, tuple(culprits), lambda changed: write(changed + padding)
    )


def _data_of(constant: schema.Tensor) -> int | str | None:
    extra = constant.extra_tensor_info
    if extra is not None and extra.fully_qualified_name:
        return extra.fully_qualified_name
    return constant.data_buffer_idx if constant.allocation_info is None else None


def named(parts: Parts) -> Iterator[Weight]:
    """Yield delegates' weights, which are named data that several may share."""
    weights: dict[str, tuple[str, tuple[int, ...]]] = {}
    for held in parts.program.backend_delegate_data:
        payload = bytes(held.data)
        for tensor, _, key in tensors(read_graph(payload)) if is_xnnpack(payload) else ():
            if key in parts.named and tensor["datatype"] in _XNNPACK_DTYPES:
                dtype = _XNNPACK_DTYPES[tensor["datatype"]]
                weights.setdefault(key, (dtype, tuple(tensor["dims"])))
    for key, data in parts.named.items():
        if key.startswith("add_sub/"):
            weights[key] = ("float32", (len(data) // 4,))
    for key, (dtype, sizes) in weights.items():
        culprits = parts.users_of(
            lambda *user, key=key: key.encode() in parts.payload(*user)  # type: ignore[misc]
        )
        write = partial(parts.named.__setitem__, key)
        yield Weight(key[:16], parts.named[key], dtype, sizes, culprits, write)


def _damage_weight(
    parts: Parts, random: Random, place: Callable[[Parts], Iterator[Weight]], change: Change
) -> Damage | None:
    weights = list(place(parts))
    random.shuffle(weights)
    for weight in weights:
        values = _decode(weight.data, weight.dtype)
        what = change(values, weight.sizes, random) if values.size else None
        if what is not None:
            weight.write(_encode(values, weight.dtype))
            return Damage(f"{weight.name}: {what}", weight.culprits)
    return None


for place_name, place in (("constant", constants), ("named_data", named), ("ptd", external)):
    for change in (element, row, nan):
        name = f"{change.__name__}_in_{place_name}"
        DAMAGES[name] = partial(_damage_weight, place=place, change=change)
