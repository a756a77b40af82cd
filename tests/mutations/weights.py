"""Damages of weights: by one element, by a row, by one bit, by NaN; wherever weights stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from executorch.exir import schema

from .parts import (
    Culprit,
    Damage,
    Parts,
    culprit_of,
    delegate_culprit,
    elements,
    users,
)
from .payloads import FLOAT, HALF, QBINT4, QCINT4, QCINT8, QINT8, Xnnpack

Change = Callable[[np.ndarray, tuple[int, ...], Random], str | None]


def element(values: np.ndarray, sizes: tuple[int, ...], random: Random) -> str | None:
    """A tenth of the greatest weight more; of an int8 weight 24 steps."""
    index = random.randrange(values.size)
    if values.dtype == np.int8:
        values[index] += -24 if values[index] > 0 else 24
    else:
        values[index] += 0.1 * float(np.abs(values[np.isfinite(values)]).max() or 1)
    return f"element {index}"


def row(values: np.ndarray, sizes: tuple[int, ...], random: Random) -> str | None:
    """Two rows that follow each other change places."""
    if len(sizes) < 2 or sizes[0] < 2:
        return None
    rows = values.reshape(sizes[0], -1)
    first = random.randrange(sizes[0] - 1)
    rows[[first, first + 1]] = rows[[first + 1, first]]
    return f"rows {first} and {first + 1} exchanged"


def exponent(values: np.ndarray, sizes: tuple[int, ...], random: Random) -> str | None:
    """The least bit of the exponent, so that a number doubles or halves; bit 6 of an int8."""
    index = random.randrange(values.size)
    if values.dtype == np.int8:
        values.view(np.uint8)[index] ^= 1 << 6
    else:
        values.view(np.uint32)[index] ^= 1 << 23
    return f"a bit of element {index}"


def nan(values: np.ndarray, sizes: tuple[int, ...], random: Random) -> str | None:
    if values.dtype == np.int8:
        return None
    index = random.randrange(values.size)
    values[index] = np.nan
    return f"NaN in element {index}"


@dataclass(frozen=True)
class Weight:
    """One that can be changed: `write` puts other bytes in its place."""

    name: str
    data: bytes
    dtype: str
    sizes: tuple[int, ...]
    culprits: tuple[Culprit, ...]
    write: Callable[[bytes], None]


# By ExecuTorch's scalar type.
_DTYPES = {1: "int8", 5: "float16", 6: "float32", 15: "bfloat16"}


def _decode(data: bytes, dtype: str) -> np.ndarray:
    """Return int8 values, or any others in float32."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    values = np.frombuffer(data, dtype)
    return values.copy() if dtype == "int8" else values.astype(np.float32)


def _encode(values: np.ndarray, dtype: str) -> bytes:
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(dtype).tobytes()


def constants(parts: Parts) -> Iterator[Weight]:
    """Those of the program's constant segment."""
    for index, buffer in list(enumerate(parts.program.constant_buffer))[1:]:

        def is_it(each: schema.Tensor, index: int = index) -> bool:
            return each.data_buffer_idx == index and each.allocation_info is None

        def write(data: bytes, buffer: schema.Buffer = buffer) -> None:
            buffer.storage = data

        yield from _plain(parts, f"constant {index}", bytes(buffer.storage), is_it, write)


def external(parts: Parts) -> Iterator[Weight]:
    """Those of the `.ptd` files."""
    for stem, payload in parts.ptds.items():
        for key, entry in payload.named_data.items():

            def is_it(each: schema.Tensor, key: str = key) -> bool:
                extra = each.extra_tensor_info
                return extra is not None and extra.fully_qualified_name == key

            def write(
                data: bytes, buffers: list[bytes] = payload.buffers, at: int = entry.buffer_index
            ) -> None:
                buffers[at] = data

            data = bytes(payload.buffers[entry.buffer_index])
            yield from _plain(parts, f"{key} in {stem}.ptd", data, is_it, write)


def _plain(
    parts: Parts,
    name: str,
    data: bytes,
    is_it: Callable[[schema.Tensor], bool],
    write: Callable[[bytes], None],
) -> Iterator[Weight]:
    """A constant that instructions read."""
    culprits, found = [], None
    for plan in parts.plans:
        for place, each in enumerate(plan.values):
            if isinstance(each.val, schema.Tensor) and is_it(each.val):
                found = each.val
                culprits += [culprit_of(plan, number) for number in users(plan, place)]
    if found is None or not culprits or int(found.scalar_type) not in _DTYPES:
        return
    dtype = _DTYPES[int(found.scalar_type)]
    size = elements(found) * {"int8": 1, "float32": 4}.get(dtype, 2)
    rest = data[size:]  # padding
    sizes = tuple(found.sizes[dimension] for dimension in found.dim_order)
    yield Weight(
        name, data[:size], dtype, sizes, tuple(culprits), lambda changed: write(changed + rest)
    )


_INTEGERS = (QINT8, QCINT8, QCINT4, QBINT4)  # of 4 bits, two in a byte


def named(parts: Parts) -> Iterator[Weight]:
    """Those of XNNPACK's delegates, which stand in named data and may be several delegates'."""
    known = {FLOAT: "float32", HALF: "float16", **dict.fromkeys(_INTEGERS, "int8")}
    seen = set()
    for plan, number in parts.delegates():
        payload = parts.payload(plan, number)
        for value in Xnnpack(payload).values() if Xnnpack.fits(payload) else ():
            if value.key not in parts.named or value.key in seen or value.kind not in known:
                continue
            seen.add(value.key)
            sharing = [
                delegate_culprit(one, other)
                for one, other in parts.delegates()
                if value.key.encode() in parts.payload(one, other)
            ]

            def write(data: bytes, key: str = value.key) -> None:
                parts.named[key] = data

            data, dtype = parts.named[value.key], known[value.kind]
            yield Weight(value.key[:12], data, dtype, value.sizes, tuple(sharing), write)
    for key, data in list(parts.named.items()):
        if key.startswith("add_sub/"):
            sharing = [
                delegate_culprit(one, other)
                for one, other in parts.delegates()
                if key.encode() in parts.payload(one, other)
            ]

            def write(data: bytes, key: str = key) -> None:
                parts.named[key] = data

            yield Weight(key[:16], data, "float32", (len(data) // 4,), tuple(sharing), write)


PLACES = {"constant": constants, "named_data": named, "ptd": external}
CHANGES: dict[str, Change] = {
    "element": element,
    "row": row,
    "exponent": exponent,
    "nan": nan,
}


def damage_weight(parts: Parts, random: Random, place: str, change: str) -> Damage | None:
    found = list(PLACES[place](parts))
    random.shuffle(found)
    for weight in found:
        values = _decode(weight.data, weight.dtype)
        if values.size == 0:
            continue
        what = CHANGES[change](values, weight.sizes, random)
        if what is not None:
            weight.write(_encode(values, weight.dtype))
            return Damage(f"{weight.name}: {what}", weight.culprits)
    return None
