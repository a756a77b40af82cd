"""Watches what becomes of constants while a unit is compiled.

Every storage that torch computes from a constant is a step of a recipe; every value that reaches
Python is a guard, which must be the same again; the storages whose bytes serializers take are the
candidates for blobs. Operators that numpy can't repeat make steps of their own kind, and what is
read of these, or stored, is guarded by the constants that went into them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.compile.inspect import storages
from pipeline.compile.inspect.arrays import Array, View, logical_bytes, look
from pipeline.compile.inspect.storages import described_to, storage_bytes, view_of
from pipeline.features.refit.recipes import (
    LITERAL,
    SOURCE,
    UNKNOWN,
    is_repeatable,
    views_of,
)
from pipeline.program.patching import replaced
from pipeline.store.digest import Digest, hash_bytes

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# Bytes of a tensor that is no constant of the program, in a record.
_LONGEST_LITERAL = 1 << 16
# Their result has the shape of what they take, and none of its values.
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
# Operators that change where a tensor looks, and no value.
_MOVING = frozenset(
    {"set_", "resize_", "detach_", "as_strided_", "t_", "transpose_", "squeeze_"}
)
# Keywords that say what a result is made as, which is seen by the result.
_OF_RESULTS = frozenset({"dtype", "memory_format", "layout", "device", "pin_memory"})
_READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# What gives values to Python without a call of an operator. That of storages gives an address, by
# which serializers take all bytes.
_HOOKS: Mapping[type, tuple[str, ...]] = {
    torch.Tensor: (
        "numpy",
        "tolist",
        "data_ptr",
        "__array__",
        "__dlpack__",
        "__repr__",
    ),
    torch.UntypedStorage: ("data_ptr", "tolist", "__getitem__", "__iter__"),
}
# Modules that read to watch and to describe, not to decide.
_OWN = (
    __name__,
    storages.__name__,
)
_SERIALIZERS = frozenset({
    "executorch.exir.emit._emitter",
    "executorch.backends.xnnpack.operators.node_visitor",
})  # fmt: skip


class Watch:
    """The record of one compilation.

    Attributes:
        steps: as `recipes.Evaluation` takes them.
        guards: `view`s whose values were read, the `digest` of these and `where` that was.
        stored: by the digest of bytes that a serializer took, the steps that made them; None
            stands for a storage that no constant went into.
        described: by the digest of a tensor that the description of constants names, its views.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.guards: list[dict[str, Any]] = []
        self.stored: dict[Digest, list[int | None]] = {}
        self.described: dict[Digest, list[View | None]] = {}
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._literals: dict[tuple[bytes, int], int] = {}

    def add_source(
        self, tensor: torch.Tensor, method: str, kind: str, name: str
    ) -> None:
        """Note that a tensor's storage holds a constant of a method's source."""
        if type(tensor) in _PLAIN and self.find(tensor) is None:
            self._note(
                tensor, {"op": SOURCE, "method": method, "kind": kind, "name": name}
            )

    def find(self, tensor: torch.Tensor) -> View | None:
        """Return the place of a tensor in a storage that is known; None where it is in none."""
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
            return None
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        if storage:
            return view_of(tensor, storage[1])
        return None

    def _note(self, tensor: torch.Tensor, step: dict[str, Any]) -> None:
        # The reference keeps the address from being given to another storage, and no memory.
        storage = tensor.untyped_storage()
        self.steps.append(step)
        self._storages[storage._cdata] = StorageWeakRef(storage), len(self.steps) - 1

    def describe_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Return the arguments of a call as those of a step; a text stands for what none has."""
        more = {}
        for n, v in kwargs.items():
            if n not in _OF_RESULTS and v not in (None, False):
                more[n] = v
        return [*map(self._describe, args), *(f"keyword {name}" for name in more)]

    def _describe(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            view = self.find(value) or self._add_literal(value)
            return view.to_json() if view else "a tensor"
        if type(value) in (bool, int, float):
            return value
        if isinstance(value, list | tuple) and all(
            type(element) is int for element in value
        ):
            return list(value)
        return f"a {type(value).__name__}"

    def _add_literal(self, tensor: torch.Tensor) -> View | None:
        """Make a step of a tensor that no constant went into; None for one that is too long."""
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

    def note_result(self, name: str, args: list[Any], out: Any) -> None:
        """Note what an operator made of known storages, given the arguments of its step."""
        new_tensors = [tensor for tensor in _tensors(out) if self.find(tensor) is None]
        for tensor in new_tensors if name not in _FACTORIES else ():
            alone = len(new_tensors) == 1
            self._note(
                tensor,
                self._make_step(name, args, tensor, views_of({"args": args}), alone),
            )

    def note_change(self, name: str, tensor: torch.Tensor, args: list[Any]) -> None:
        """Note that an operator changed the values of a storage."""
        views = views_of({"args": args})
        copied = name == "aten.copy_.default" and len(args) == 2
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
        dtype = str(tensor.dtype).removeprefix("torch.")
        step = {
            "op": name,
            "args": args,
            "dtype": dtype,
            "sizes": sizes,
            "strides": strides,
        }
        if whole and _fills_storage(tensor) and is_repeatable(step):
            return step
        of = sorted({view["step"] for view in views})
        return {"op": UNKNOWN, "what": name, "where": _place(), "of": of}

    def guard(self, view: View, storage: Array) -> None:
        """Note that values of a view reach Python, which may decide by them."""
        values = hash_bytes(logical_bytes(look(storage, view)))
        self.guards.append(
            {"view": view.to_json(), "digest": values, "where": _place()}
        )

    def note_stored(self, storage: torch.UntypedStorage) -> None:
        """Note that a serializer takes the bytes of a storage."""
        data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        makers = self.stored.setdefault(hash_bytes(data.data), [])
        storage_entry = self._storages.get(storage._cdata)
        maker = storage_entry[1] if storage_entry else None
        if maker not in makers:
            makers.append(maker)

    def note_described(self, tensor: torch.Tensor, base: Digest) -> None:
        """Note that a tensor is described, by the digest of its logical bytes."""
        views = self.described.setdefault(base, [])
        if (view := self.find(tensor)) not in views:
            views.append(view)

    def note_read(self, read: Any) -> None:
        """Note that Python takes the bytes of a tensor or a storage."""
        is_tensor = isinstance(read, torch.Tensor)
        storage = read.untyped_storage() if is_tensor else read
        storage_entry = self._storages.get(storage._cdata)
        if storage_entry is None:
            return
        whole = torch.empty(0, dtype=torch.uint8)
        whole.set_(storage)
        view = view_of(read if is_tensor else whole, storage_entry[1])
        self.guard(view, whole.numpy())


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch what becomes of the sources of `watch` within the context."""
    with described_to(watch.note_described), ExitStack() as hooks:
        for owner, names in _HOOKS.items():
            for name in names:
                hooks.enter_context(_hooked(owner, name, watch))
        hooks.enter_context(_Mode(watch))
        yield


class _Mode(TorchDispatchMode):
    """Tells the watch of each operator that takes a known storage."""

    supports_higher_order_operators = True

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # by importing it
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        watch = self._watch
        known_tensors = [
            known_tensor
            for known_tensor in _tensors((args, keywords))
            if watch.find(known_tensor) is not None
        ]
        if not known_tensors or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **keywords)
        if _READING.intersection(func.tags):
            for known_tensor in known_tensors:
                watch.note_read(known_tensor)
        described = watch.describe_arguments(args, keywords)
        out = func(*args, **keywords)
        name = str(func)
        operator = func._schema.name.partition("::")[2]
        if func._schema.is_mutable and operator not in _MOVING:
            for changed in _changed(func, args, keywords):
                watch.note_change(name, changed, described)
        else:
            watch.note_result(name, described, out)
        return out


def _hooked(owner: Any, name: str, watch: Watch) -> Any:
    original = getattr(owner, name)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if (
            not isinstance(self, torch.Tensor)
            and caller in _SERIALIZERS
            and name == "data_ptr"
        ):
            watch.note_stored(self)
        elif caller not in _OWN and (
            type(self) in _PLAIN or not isinstance(self, torch.Tensor)
        ):
            watch.note_read(self)
        return original(self, *args, **kwargs)

    return _replaced(owner, name, read)


@contextmanager
def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Give a class another method within the context, also one that it inherits."""
    if name in vars(owner):
        with replaced(owner, name, lambda original: function):
            yield
        return
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _tensors(element)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _changed(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operator writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for tensor in _tensors(value):
            if type(tensor) in _PLAIN:
                yield tensor


def _fills_storage(tensor: torch.Tensor) -> bool:
    size = math.prod(tensor.shape) * tensor.element_size()
    plain = type(tensor) in _PLAIN and tensor.device.type == "cpu"
    return (
        plain
        and not tensor.storage_offset()
        and tensor.untyped_storage().nbytes() == size
    )


def _place() -> str:
    """Return who reads now: the innermost function that is neither torch's nor of this module."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        passed = module.startswith(("torch.", "contextlib", "executorch.exir.dialects"))
        if module not in (*_OWN, "torch") and not passed:
            return f"{module}.{frame.f_code.co_qualname}, line {frame.f_lineno}"
        frame = frame.f_back
    return "torch"
