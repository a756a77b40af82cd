"""Watches what becomes of constants while a unit is compiled.

Every storage that torch computes from a constant is a step of a recipe; every value that reaches
Python is a guard, which must be the same again; the storages whose bytes serializers take are the
candidates for blobs. Operators that can't be repeated without torch make steps of their own kind,
and what is read of these, or stored, is guarded by the constants that went into them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.compile.refit.arrays import UnknownValueError, View
from pipeline.compile.refit.recipes import LITERAL, SOURCE, UNKNOWN, is_repeatable
from pipeline.program.patching import replaced
from pipeline.store.digest import Digest, hash_bytes

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LONGEST_LITERAL = 1 << 16  # bytes of a tensor that is no constant of the program, in a record
# They give a new tensor without a look at the values of the one that they take.
_FACTORIES = frozenset({
    "aten.zeros_like.default", "aten.ones_like.default", "aten.empty_like.default",
    "aten.new_zeros.default", "aten.new_ones.default", "aten.new_empty.default",
    "aten.new_empty_strided.default", "aten.full_like.default", "aten.new_full.default",
})  # fmt: skip
_READS = frozenset({"aten._local_scalar_dense.default", "aten.equal.default"})
# Operators that change where a tensor looks, and no value.
_MOVES = frozenset({"set_", "resize_", "detach_", "as_strided_", "requires_grad_", "t_"})
# Serializers, whose reads are stored bytes; and the description of constants, which is repeated.
_SERIALIZERS = frozenset({
    "executorch.exir.emit._emitter", "executorch.backends.xnnpack.operators.node_visitor",
})  # fmt: skip
_DESCRIBING = "pipeline.compile.inspect.constants"


@dataclass
class Watch:
    """The record of one compilation.

    Attributes:
        steps: as `recipes.Evaluation` takes them.
        guards: views whose values were read, with the digest of these and who read them.
        stored: by the digest of bytes that a serializer took, the steps that made them; None
            stands for a storage that no constant went into.
        described: by the digest of a tensor that the description of constants names, its views.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    guards: list[dict[str, Any]] = field(default_factory=list)
    stored: dict[Digest, list[int | None]] = field(default_factory=dict)
    described: dict[Digest, list[View | None]] = field(default_factory=dict)
    _known: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)

    # What is known of storages

    def add_source(self, tensor: torch.Tensor, method: str, kind: str, name: str) -> None:
        """Note that a tensor's storage holds a constant of the source."""
        if type(tensor) in _PLAIN and self._find(tensor) is None:
            self._note(tensor, {"op": SOURCE, "method": method, "kind": kind, "name": name})

    def find_view(self, tensor: torch.Tensor) -> View | None:
        """Return the place of a tensor in a storage that is known; None where none is."""
        number = self._find(tensor)
        return None if number is None else _view(tensor, number)

    def _find(self, tensor: torch.Tensor) -> int | None:
        found = self._known.get(_address(tensor))
        return found[1] if found else None

    def _note(self, tensor: torch.Tensor, step: dict[str, Any]) -> int:
        # The reference keeps the address from being given to another storage, and no memory.
        storage = tensor.untyped_storage()
        self.steps.append(step)
        self._known[storage._cdata] = StorageWeakRef(storage), len(self.steps) - 1
        return len(self.steps) - 1

    # What happens to them

    def note_call(self, name: str, args: Sequence[Any], before: Sequence[Any], out: Any) -> None:
        """Note an operator that took known storages. `before` are its arguments as JSON."""
        views = [each for each in before if isinstance(each, Mapping)]
        if name in _READS:
            for each in views:
                self.guard(View.from_json(each), out if name.startswith("aten._local") else None)
            return
        if name in _FACTORIES:
            return
        made = [each for each in _tensors(out) if self._find(each) is None]
        for tensor in made:
            step = {"op": name, "args": list(before), **_layout(tensor)}
            repeatable = len(made) == 1 and _dense(tensor) and is_repeatable(step)
            self._note(tensor, step if repeatable else self._unknown(name, views))
        if not list(_tensors(out)) and out is not None:
            for each in views:
                self.guard(View.from_json(each))

    def note_change(self, name: str, tensor: torch.Tensor, before: Sequence[Any]) -> None:
        """Note an operator that changed the values of a storage."""
        views = [each for each in before if isinstance(each, Mapping)]
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes and _dense(tensor)
        step = {"op": name, "args": [before[1]], **_layout(tensor)} if len(before) > 1 else {}
        copied = name == "aten.copy_.default" and whole and isinstance(before[1], Mapping)
        known = copied and is_repeatable(step)
        self._note(tensor, step if known else self._unknown(name, views))

    def _unknown(self, name: str, views: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        of = sorted({each["step"] for each in views})
        return {"op": UNKNOWN, "what": name, "where": _place(), "of": of}

    def literal(self, tensor: torch.Tensor) -> View | None:
        """Make a step of a tensor that no constant went into; None for one that is too long."""
        storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
        data, item = storage.tobytes(), tensor.element_size()
        uniform = data == data[:item] * (len(data) // item)
        if not uniform and len(data) > _LONGEST_LITERAL:
            return None
        unit, count = (data[:item], len(data) // item) if uniform else (data, 1)
        self.steps.append({"op": LITERAL, "bytes": unit.hex(), "count": count})
        return _view(tensor, len(self.steps) - 1)

    # What is read of them

    def guard(self, view: View, value: Any = None) -> None:
        """Note that values of a view reached Python."""
        self.guards.append({"view": view.to_json(), "value": value, "where": _place()})

    def note_stored(self, storage: torch.UntypedStorage) -> None:
        """Note that a serializer takes the bytes of a storage."""
        found = self._known.get(storage._cdata)
        data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        makers = self.stored.setdefault(hash_bytes(data.data), [])
        number = found[1] if found else None
        if number not in makers:
            makers.append(number)

    def note_described(self, tensor: torch.Tensor, base: Digest) -> None:
        """Note that the description of constants names a tensor of these logical bytes."""
        views = self.described.setdefault(base, [])
        view = self.find_view(tensor)
        if view not in views:
            views.append(view)


_watching: ContextVar[Watch | None] = ContextVar("watch of constants", default=None)


def note_described(tensor: torch.Tensor, base: Digest) -> None:
    """Tell the watch, if there is one, of a tensor that is described."""
    if (watch := _watching.get()) is not None:
        watch.note_described(tensor, base)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch what becomes of the sources of `watch` within the context."""
    token = _watching.set(watch)
    with ExitStack() as hooks:
        for owner, names in (
            (torch.Tensor, ("numpy", "tolist", "data_ptr", "__array__", "__dlpack__", "__repr__")),
            (torch.UntypedStorage, ("data_ptr", "tolist", "__getitem__", "__iter__")),
        ):
            for name in names:
                hooks.enter_context(_hooked(owner, name, watch))
        hooks.enter_context(_Mode(watch))
        try:
            yield
        finally:
            _watching.reset(token)


class _Mode(TorchDispatchMode):
    """Tells the watch of each operator that takes a known storage."""

    supports_higher_order_operators = True

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # which would be imported for it
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
        kwargs = kwargs or {}
        known = [
            each
            for each in _tensors((args, kwargs))
            if type(each) in _PLAIN and self._watch._find(each) is not None
        ]
        if not known or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        name = str(func)
        before = self._describe(func, args, kwargs)
        out = func(*args, **kwargs)
        if not func._schema.is_mutable or func._schema.name.split("::")[1] in _MOVES:
            self._watch.note_call(name, args, before, out)
        else:
            for changed in _changed(func, args, kwargs):
                self._watch.note_change(name, changed, before)
        return out

    def _describe(self, func: Any, args: Any, kwargs: Any) -> list[Any]:
        """Return the arguments of a call as JSON, those by name only where they have a value that
        counts; something else than numbers and tensors makes the call one that is not repeated."""
        described = [self._argument(each) for each in args]
        ignored = ("dtype", "memory_format", "layout", "device", "pin_memory", "non_blocking")
        more = [n for n, value in kwargs.items() if n not in ignored and value not in (None, False)]
        return [*described, *({"unknown": 1} and [f"keyword {name}"] for name in more)][:99]

    def _argument(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            view = self._watch.find_view(value) or self._watch.literal(value)
            return view.to_json() if view else "a tensor"
        if isinstance(value, bool | int | float) and not isinstance(value, torch.SymInt):
            return value
        if isinstance(value, list | tuple) and all(type(each) is int for each in value):
            return list(value)
        return f"a {type(value).__name__}"


def _hooked(owner: Any, name: str, watch: Watch) -> Any:
    original = getattr(owner, name)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = isinstance(self, torch.Tensor)
        if tensor and type(self) not in _PLAIN:
            return original(self, *args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller in _SERIALIZERS and name == "data_ptr" and not tensor:
            watch.note_stored(self)
        elif caller not in (_DESCRIBING, __name__):
            storage = self.untyped_storage() if tensor else self
            found = watch._known.get(storage._cdata)
            if found is not None:
                view = _view(self, found[1]) if tensor else _whole(self, found[1])
                watch.guard(view)
        return original(self, *args, **kwargs)

    return replaced_or_added(owner, name, read)


@contextmanager
def replaced_or_added(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
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
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _changed(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from (each for each in _tensors(value) if type(each) in _PLAIN)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # sparse, or of a backend without storages
        return 0


def _view(tensor: torch.Tensor, step: int) -> View:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return View(step, dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _whole(storage: torch.UntypedStorage, step: int) -> View:
    return View(step, "uint8", (storage.nbytes(),), (1,))


def _layout(tensor: torch.Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "sizes": list(tensor.shape), "strides": list(tensor.stride())}


def _dense(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
    return (
        plain
        and tensor.device.type == "cpu"
        and not tensor.storage_offset()
        and tensor.untyped_storage().nbytes() == math.prod(tensor.shape) * tensor.element_size()
    )


def _place() -> str:
    """Return who reads now: the innermost function that is neither torch's nor of this module."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and module.partition(".")[0] not in ("torch", "contextlib"):
            return f"{module}.{frame.f_code.co_qualname}, line {frame.f_lineno}"
        frame = frame.f_back
    return "torch"


__all__ = ["UnknownValueError", "Watch", "note_described", "watched"]
