"""The record of how constants are used while a unit is compiled.

Every storage that torch computes from a constant is a step of a recipe. Every value that reaches
Python is a guard, which must stay the same. The storages whose bytes serializers take are the
candidates for blobs. Operators that numpy can't repeat make steps of their own kind; if their
results are read or stored, the constants that went into them become guards. If something can't be
seen, the record says so (`Watch.gaps`) and proves nothing by itself. `hooks.py` reports all this to
the record.
"""

from __future__ import annotations

import marshal
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._mode_utils import no_dispatch

from pipeline.compile.inspect.arrays import Array, View, logical_bytes, look
from pipeline.compile.inspect.storages import storage_bytes, view_of
from pipeline.features.refit.callers import is_number_maker, name_place
from pipeline.features.refit.recipes import (
    LITERAL,
    SOURCE,
    UNKNOWN,
    is_repeatable,
    views_of,
)
from pipeline.store.digest import Digest, hash_bytes

PLAIN = (torch.Tensor, torch.nn.Parameter)
# The most bytes of a literal in a record. Literals are tensors that hold no constants.
_LONGEST_LITERAL = 1 << 16
# Their result has the shape of their argument, but none of its values.
_FACTORIES = frozenset(
    f"aten.{name}.default"
    for name in (
        *(
            "zeros_like",
            "ones_like",
            "empty_like",
            "full_like",
            "rand_like",
            "new_zeros",
        ),
        *("new_ones", "new_empty", "new_empty_strided", "new_full"),
    )
)
# Keywords that set properties of a result, which can be seen on the result.
_OF_RESULTS = frozenset({"dtype", "memory_format", "layout", "device", "pin_memory"})
COPY = "aten.copy_.default"
READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Tensors that hold no values.
FAKES = (FakeTensor, FunctionalTensor)


class Watch:
    """The record of one compilation.

    Attributes:
        steps: in the form that `recipes.Evaluation` expects.
        guards: `view`s whose values were read, the `digest` of the values, and `where` they were
            read.
        stored: by the digest of bytes that a serializer took, the steps that made them; None stands
            for a storage that no constant went into.
        described: by the digest of a tensor that the description of constants names, its views.
        gaps: places that could not be seen and may depend on values, each once.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.guards: list[dict[str, Any]] = []
        self.stored: dict[Digest, list[int | None]] = {}
        self.described: dict[Digest, list[View | None]] = {}
        self.gaps: dict[str, None] = {}
        # The step that made a storage; None if no constant went into it.
        self._storages: dict[int, tuple[StorageWeakRef, int | None]] = {}
        self._literals: dict[tuple[bytes, int], int] = {}
        self._numbers: dict[bytes, int] = {}  # of steps, by their content

    def add_source(
        self, tensor: torch.Tensor, method: str, kind: str, name: str
    ) -> None:
        """Record that a tensor's storage holds a constant of a method's source."""
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            self.note_gap(f"{name} is not a plain tensor")
        elif not self.is_known(tensor):
            self._note(
                tensor, {"op": SOURCE, "method": method, "kind": kind, "name": name}
            )

    def note_gap(self, what: str) -> None:
        """Record something that could not be seen."""
        self.gaps[what] = None

    def find(self, tensor: torch.Tensor) -> View | None:
        """Return the place of a tensor in a known storage, or None."""
        step = self._find_step_of(tensor)
        return None if step is None else view_of(tensor, step)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether `find` returns a place, which takes longer to describe."""
        return self._find_step_of(tensor) is not None

    def find_known(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors with known storages among plain ones."""
        known_tensors = []
        for tensor in tensors:
            entry = self._storages.get(tensor.untyped_storage()._cdata)
            if entry is not None and entry[1] is not None:
                known_tensors.append(tensor)
        return known_tensors

    def _find_step_of(self, tensor: torch.Tensor) -> int | None:
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            return None
        return self._find_step(tensor.untyped_storage())

    def _find_step(self, storage: torch.UntypedStorage) -> int | None:
        entry = self._storages.get(storage._cdata)
        return entry[1] if entry else None

    def is_accounted(self, tensor: torch.Tensor) -> bool:
        """Return whether the origin of a plain tensor's storage is known."""
        return tensor.untyped_storage()._cdata in self._storages

    def note_free(self, tensor: torch.Tensor) -> None:
        """Record that no constant went into the storage of a plain tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = StorageWeakRef(storage), None

    def _note(self, tensor: torch.Tensor, step: dict[str, Any]) -> None:
        # The reference keeps the address from being reused for another storage, but holds no
        # memory.
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = StorageWeakRef(storage), self._add_step(step)

    def _add_step(self, step: dict[str, Any]) -> int:
        """Add a step, unless an equal one makes the same bytes, and return its number.

        Some constants are computed twice, to be stored and to be described.
        """
        number = len(self.steps)
        if step["op"] != UNKNOWN:
            number = self._numbers.setdefault(marshal.dumps(step, 2), number)
        if number == len(self.steps):
            self.steps.append(step)
        return number

    def describe_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Return a call's arguments in the form of a step, with text for unsupported ones."""
        more = {}
        for n, v in kwargs.items():
            if n not in _OF_RESULTS and v not in (None, False):
                more[n] = v
        return [*map(self._describe, args), *(f"keyword {name}" for name in more)]

    def _describe(self, value: Any) -> Any:
        if type(value) in PLAIN:
            step = self._find_step_of(value)
            if step is not None:
                return _describe_view(value, step)
            view = self._add_literal(value)
            return view.to_json() if view else "a tensor"
        if type(value) in (bool, int, float):
            return value
        if isinstance(value, list | tuple) and all(
            type(element) is int for element in value
        ):
            return list(value)
        return f"a {type(value).__name__}"

    def _add_literal(self, tensor: torch.Tensor) -> View | None:
        """Add a step for a tensor that no constant went into; return None if it is too long."""
        if not self.is_accounted(tensor) and not self._is_new_number(tensor):
            self.note_gap(f"a tensor of unknown origin in {name_place()}")
        data = storage_bytes(tensor).tobytes()
        item = tensor.element_size()
        unit = data
        count = 1
        if data == data[:item] * (len(data) // item):  # all elements are the same
            unit = data[:item]
            count = len(data) // item
        elif len(data) > _LONGEST_LITERAL:
            return None
        number = self._literals.get((unit, count))
        if number is None:
            self.steps.append({"op": LITERAL, "bytes": unit.hex(), "count": count})
            number = len(self.steps) - 1
            self._literals[unit, count] = number
        return view_of(tensor, number)

    def _is_new_number(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() == 1 and is_number_maker()

    def note_result(
        self,
        name: str,
        describe: Callable[[], list[Any]],
        results: Sequence[torch.Tensor],
    ) -> None:
        """Record the results of an operator on known storages.

        Args:
            describe: returns the arguments of the operator's step; most results need none, since
                they are views.
        """
        new_tensors = [
            tensor
            for tensor in results
            if type(tensor) not in FAKES and not self.is_known(tensor)
        ]
        for tensor in new_tensors:
            if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
                self.note_gap(f"{name} makes a tensor of a custom class")
                continue
            if name in _FACTORIES:
                self.note_free(tensor)
                continue
            alone = len(new_tensors) == 1
            described = describe()
            views = views_of({"args": described})
            self._note(tensor, self._make_step(name, described, tensor, views, alone))

    def note_change(self, name: str, tensor: torch.Tensor, args: list[Any]) -> None:
        """Record that an operator changed the values of a storage."""
        views = views_of({"args": args})
        copied = name == COPY and len(args) == 2
        self._note(tensor, self._make_step(name, args[1:], tensor, views, copied))

    def _make_step(
        self,
        name: str,
        args: list[Any],
        tensor: torch.Tensor,
        views: list[Any],
        whole: bool,
    ) -> dict[str, Any]:
        sizes = list(tensor.shape)
        strides = list(tensor.stride())
        dtype = _name_dtype(tensor.dtype)
        step = {
            "op": name,
            "args": args,
            "dtype": dtype,
            "sizes": sizes,
            "strides": strides,
        }
        if whole and fills_storage(tensor) and is_repeatable(step):
            return step
        of = sorted({view["step"] for view in views})
        return {"op": UNKNOWN, "what": name, "where": name_place(), "of": of}

    def guard(self, view: View, storage: Array) -> None:
        """Record that values of a view reach Python, which may base decisions on them."""
        values = hash_bytes(logical_bytes(look(storage, view)))
        self.guards.append(
            {"view": view.to_json(), "digest": values, "where": name_place()}
        )

    def note_stored(self, storage: torch.UntypedStorage) -> None:
        """Record that a serializer takes the bytes of a storage."""
        with no_dispatch():
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        makers = self.stored.setdefault(hash_bytes(data.data), [])
        if storage._cdata not in self._storages:
            self.note_gap(f"a tensor of unknown origin is stored by {name_place()}")
        maker = self._find_step(storage)
        if maker not in makers:
            makers.append(maker)

    def note_described(self, tensor: torch.Tensor, base: Digest) -> None:
        """Record that a tensor is described, by the digest of its logical bytes."""
        views = self.described.setdefault(base, [])
        if not self.is_accounted(tensor):
            self.note_gap(f"a tensor of unknown origin is described by {name_place()}")
        if (view := self.find(tensor)) not in views:
            views.append(view)

    def note_readings(self, func: Any, tensors: Iterable[torch.Tensor]) -> None:
        """Record the arguments of an operator that passes values to Python as read."""
        if _passes_values(func):
            for tensor in tensors:
                self.note_read(tensor)

    def note_read(self, read: Any) -> None:
        """Record that Python takes the bytes of a tensor or a storage."""
        is_tensor = isinstance(read, torch.Tensor)
        storage = read.untyped_storage() if is_tensor else read
        step = self._find_step(storage)
        if step is None:
            if storage._cdata not in self._storages:
                self.note_gap(f"a tensor of unknown origin is read by {name_place()}")
            return
        with no_dispatch():  # a dispatch mode would make a fake tensor
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            view = view_of(read if is_tensor else whole, step)
            self.guard(view, whole.numpy())


def _describe_view(tensor: torch.Tensor, step: int) -> dict[str, Any]:
    """Return `view_of(tensor, step).to_json()` in less time."""
    return {
        "step": step,
        "dtype": _name_dtype(tensor.dtype),
        "sizes": list(tensor.shape),
        "strides": list(tensor.stride()),
        "offset": tensor.storage_offset(),
    }


@cache
def _name_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`."""
    return str(dtype).removeprefix("torch.")


@cache
def _passes_values(func: Any) -> bool:
    """Return whether an operator passes values of its arguments to Python."""
    return bool(READING.intersection(func.tags))


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from find_tensors(element)
    elif isinstance(value, dict):
        yield from find_tensors(list(value.values()))


def fills_storage(tensor: torch.Tensor) -> bool:
    size = math.prod(tensor.shape) * tensor.element_size()
    plain = type(tensor) in PLAIN and tensor.device.type == "cpu"
    return (
        plain
        and not tensor.storage_offset()
        and tensor.untyped_storage().nbytes() == size
    )
