"""Watches what becomes of constants while a unit is compiled.

Every storage that torch computes from a constant is a step of a recipe; every value that reaches
Python is a guard, which must be the same again; the storages whose bytes serializers take are the
candidates for blobs. Operators that numpy can't repeat make steps of their own kind, and what is
read of these, or stored, is guarded by the constants that went into them. Where something can't be
seen, the record says so (`Watch.gaps`): then it proves nothing by itself.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from pkgutil import resolve_name
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.compile.inspect import storages
from pipeline.compile.inspect.arrays import Array, View, logical_bytes, look
from pipeline.compile.inspect.storages import described_to, storage_bytes, view_of
from pipeline.compile.preprocess.cached_backend import CachedBackend
from pipeline.features.refit.recipes import (
    LITERAL,
    SOURCE,
    UNKNOWN,
    is_repeatable,
    views_of,
)
from pipeline.program.patching import digest_source, replaced, wrapped
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.releases import installed_release

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
_COPY = "aten.copy_.default"
# What turns dispatching off.
_BLINDS = (
    (torch._C, "_DisableTorchDispatch"),
    (_python_dispatch, "_disable_current_modes"),
)
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
# Modules that read to watch, to describe and to find partitions in the store, not to decide.
_OWN = (
    __name__,
    storages.__name__,
    "pipeline.features.preprocess_cache.value_hash",
)
# Functions that take the bytes of storages and decide nothing by them, and the digest of their text
# in the first release of `store.releases`, which has those of others.
_EMITTER = "executorch.exir.emit._emitter"
_XNNPACK = "executorch.backends.xnnpack.operators.node_visitor"
_SERIALIZERS = (
    f"{_EMITTER}:_Emitter._tensor_spec_to_evalue",
    f"{_XNNPACK}:NodeVisitor.get_quant_params",
    f"{_XNNPACK}:NodeVisitor.get_serialized_buffer_index",
)
# It asks a tensor, of the state of random numbers, for its address, and drops it.
_ADDRESS_TRIER = "torch._dynamo.utils:skip_frame_if_in_functorch_mode"
# It makes a tensor of a number of the graph without an operator.
_NUMBER_MAKER = (
    "executorch.backends.xnnpack._passes.decompose_batch_norm:"
    "DecomposeBatchNorm.compute_w_and_b"
)
_TEXTS = dict(
    zip(
        (*_SERIALIZERS, _NUMBER_MAKER),
        (
            "e9b1de11fd7b95531e180b4515cfa1251a6b8b24b4735b629b6b0ec7017c723a",
            "4d7a736f280acbea652facc34f7b37f6c4781f17d9c2a121bdd0e30a4daadd26",
            "492f85f4cd57ca03b231c1ed687e559f804b7a053157ece37ea0f285a1948ac3",
            "0b2a2c81f4f3b1694ea514331a612302c9895c25d126eca7a2dd394c104fbfa8",
        ),
        strict=True,
    )
)
# Who turns dispatching off, so that no operator is seen, and uses no value of a constant meanwhile:
# the first works on fake tensors, the second on numbers of the graph, the third on the state of
# random numbers, the last traces branches with fake tensors. Others make a gap.
_HARMLESS = frozenset({
    ("torch._subclasses.fake_tensor", "in_kernel_invocation_manager"),
    ("executorch.exir.passes.scalar_to_tensor_pass", "try_coerce"),
    ("torch._dynamo.utils", "preserve_rng_state"),
    ("torch._higher_order_ops.utils", "_materialize_as_graph_inner"),
})  # fmt: skip
# Tensors without values of their own.
_FAKES = (FakeTensor, FunctionalTensor)


class Watch:
    """The record of one compilation.

    Attributes:
        steps: as `recipes.Evaluation` takes them.
        guards: `view`s whose values were read, the `digest` of these and `where` that was.
        stored: by the digest of bytes that a serializer took, the steps that made them; None
            stands for a storage that no constant went into.
        described: by the digest of a tensor that the description of constants names, its views.
        gaps: what could not be seen, and may rest on values, each once.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.guards: list[dict[str, Any]] = []
        self.stored: dict[Digest, list[int | None]] = {}
        self.described: dict[Digest, list[View | None]] = {}
        self.gaps: dict[str, None] = {}
        # The step that made a storage; None where no constant went into it.
        self._storages: dict[int, tuple[StorageWeakRef, int | None]] = {}
        self._literals: dict[tuple[bytes, int], int] = {}

    def add_source(
        self, tensor: torch.Tensor, method: str, kind: str, name: str
    ) -> None:
        """Note that a tensor's storage holds a constant of a method's source."""
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
            self.note_gap(f"{name} is no plain tensor")
        elif self.find(tensor) is None:
            self._note(
                tensor, {"op": SOURCE, "method": method, "kind": kind, "name": name}
            )

    def note_gap(self, what: str) -> None:
        """Note what could not be seen."""
        self.gaps[what] = None

    def find(self, tensor: torch.Tensor) -> View | None:
        """Return the place of a tensor in a storage that is known; None where it is in none."""
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
            return None
        step = self._find_step(tensor.untyped_storage())
        return None if step is None else view_of(tensor, step)

    def _find_step(self, storage: torch.UntypedStorage) -> int | None:
        entry = self._storages.get(storage._cdata)
        return entry[1] if entry else None

    def is_accounted(self, tensor: torch.Tensor) -> bool:
        """Return whether it is known of a plain tensor's storage what went into it."""
        return tensor.untyped_storage()._cdata in self._storages

    def note_free(self, tensor: torch.Tensor) -> None:
        """Note that no constant went into the storage of a plain tensor."""
        if not self.is_accounted(tensor):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage), None

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
        if not self.is_accounted(tensor) and not _makes_numbers(tensor):
            self.note_gap(f"a tensor of unknown origin in {_place()}")
        with no_dispatch():
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
        new_tensors = [
            tensor
            for tensor in _tensors(out)
            if type(tensor) not in _FAKES and self.find(tensor) is None
        ]
        for tensor in new_tensors:
            if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
                self.note_gap(f"{name} makes a tensor of a class of its own")
                continue
            if name in _FACTORIES:
                self.note_free(tensor)
                continue
            alone = len(new_tensors) == 1
            self._note(
                tensor,
                self._make_step(name, args, tensor, views_of({"args": args}), alone),
            )

    def note_change(self, name: str, tensor: torch.Tensor, args: list[Any]) -> None:
        """Note that an operator changed the values of a storage."""
        views = views_of({"args": args})
        copied = name == _COPY and len(args) == 2
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
        with no_dispatch():
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        makers = self.stored.setdefault(hash_bytes(data.data), [])
        if storage._cdata not in self._storages:
            self.note_gap(f"a tensor of unknown origin is stored by {_place()}")
        maker = self._find_step(storage)
        if maker not in makers:
            makers.append(maker)

    def note_described(self, tensor: torch.Tensor, base: Digest) -> None:
        """Note that a tensor is described, by the digest of its logical bytes."""
        views = self.described.setdefault(base, [])
        if not self.is_accounted(tensor):
            self.note_gap(f"a tensor of unknown origin is described by {_place()}")
        if (view := self.find(tensor)) not in views:
            views.append(view)

    def note_readings(self, func: Any, tensors: Iterable[torch.Tensor]) -> None:
        """Note what an operator that gives values to Python takes."""
        if _READING.intersection(func.tags):
            for tensor in tensors:
                self.note_read(tensor)

    def note_read(self, read: Any) -> None:
        """Note that Python takes the bytes of a tensor or a storage."""
        is_tensor = isinstance(read, torch.Tensor)
        storage = read.untyped_storage() if is_tensor else read
        step = self._find_step(storage)
        if step is None:
            if storage._cdata not in self._storages:
                self.note_gap(f"a tensor of unknown origin is read by {_place()}")
            return
        with no_dispatch():  # modes would make a fake tensor
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            view = view_of(read if is_tensor else whole, step)
            self.guard(view, whole.numpy())


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch what becomes of the sources of `watch` within the context."""
    with described_to(watch.note_described), ExitStack() as hooks:
        for owner, names in _HOOKS.items():
            for name in names:
                hooks.enter_context(_hooked(owner, name, watch))
        hooks.enter_context(replaced(torch, "tensor", partial(_free_tensors, watch)))
        for owner, name in _BLINDS:
            hooks.enter_context(replaced(owner, name, partial(_blind, watch)))
        hooks.enter_context(
            wrapped(CachedBackend, "find_or_make", partial(_note_hits, watch))
        )
        hooks.enter_context(_Mode(watch))
        yield


def _note_hits(
    watch: Watch,
    original: Callable[..., Any],
    backend: CachedBackend,
    inputs: Sequence[tuple[ExportedProgram, Any]],
    *args: Any,
) -> Any:
    """Preprocess partitions, and note a gap where those of a result that the store had hold
    constants."""
    counts = backend.context.counts
    hits = counts.hits
    results = original(backend, inputs, *args)
    if counts.hits > hits and any(_holds_tensors(program) for program, _ in inputs):
        watch.note_gap(f"a result of {backend.__name__} was found in the store")
    return results


def _holds_tensors(program: ExportedProgram) -> bool:
    if program.state_dict or program.constants:
        return True
    return any(
        node.op == "get_attr"
        for module in program.graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
    )


@cache
def _has_known_text(function: str) -> bool:
    """Return whether a function of `_TEXTS` is as it was read."""
    text = digest_source(resolve_name(function))
    return text == installed_release().digest_of(function, _TEXTS[function])


def _free_tensors(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what notes tensors made of Python's values, which were seen when Python got them.

    Torch reads those of tensors in a list itself, where no operator is seen.
    """

    @wraps(original)
    def tensor(*args: Any, **kwargs: Any) -> Any:
        new_tensor = original(*args, **kwargs)
        data = args[0] if args else kwargs["data"]
        for listed in [] if isinstance(data, torch.Tensor) else _tensors(data):
            watch.note_read(listed)
        if type(new_tensor) in _PLAIN:
            watch.note_free(new_tensor)
        return new_tensor

    return tensor


def _blind(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what notes a gap where dispatching is turned off by code that may use values."""

    def turn_off(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        place = str(caller.f_globals.get("__name__")), caller.f_code.co_name
        if place not in _HARMLESS:
            watch.note_gap(f"{'.'.join(place)} computes unseen")
        return original(*args, **kwargs)

    return turn_off


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
        plain_tensors: list[torch.Tensor] = []
        if _gather(args, plain_tensors) or _gather(keywords.values(), plain_tensors):
            watch.note_gap(f"{func} takes a tensor of a class of its own")
        if any(t.is_neg() or t.is_conj() for t in plain_tensors):
            watch.note_gap(f"{func} takes a tensor with other values than its storage")
        known_tensors = [t for t in plain_tensors if watch.find(t) is not None]
        if not known_tensors:
            if isinstance(func, torch._ops.OpOverload):
                watch.note_readings(func, plain_tensors)
            out = func(*args, **keywords)
            if all(map(watch.is_accounted, plain_tensors)):
                new_tensors: list[torch.Tensor] = []
                _gather((out,), new_tensors)
                for new_tensor in new_tensors:
                    watch.note_free(new_tensor)
            return out
        if not isinstance(func, torch._ops.OpOverload):
            watch.note_gap(f"{func} computes unseen")
            return func(*args, **keywords)
        watch.note_readings(func, plain_tensors)
        name = str(func)
        if name == _COPY and type(args[0]) in _PLAIN and _fills_storage(args[0]):
            watch.note_free(args[0])  # whatever it held
        described = watch.describe_arguments(args, keywords)
        out = func(*args, **keywords)
        if any(getattr(made, "constant", None) is not None for made in _tensors(out)):
            # A fake tensor that keeps its value computes with it unseen.
            for known_tensor in known_tensors:
                watch.note_read(known_tensor)
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
        frame = sys._getframe(1)
        caller = frame.f_globals.get("__name__", "")
        function = _name_function(frame)
        if not isinstance(self, torch.Tensor) and function in _SERIALIZERS:
            if not _has_known_text(function):
                watch.note_gap(f"{function} has another text than the one known")
            watch.note_stored(self)
        elif (
            caller not in _OWN
            and function != _ADDRESS_TRIER
            and (type(self) in _PLAIN or not isinstance(self, torch.Tensor))
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


def _gather(values: Iterable[Any], plain_tensors: list[torch.Tensor]) -> bool:
    """Add the plain tensors among the arguments of an operator to a list. Return whether there is
    another one that has values."""
    others = False
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            if value.layout is torch.strided:
                plain_tensors.append(value)
            else:
                others = True
        elif kind is tuple or kind is list:
            others |= _gather(value, plain_tensors)
        elif kind is dict:
            others |= _gather(value.values(), plain_tensors)
        elif isinstance(value, torch.Tensor) and kind not in _FAKES:
            others = True
    return others


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


def _makes_numbers(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a number that the function that computes now has made one of."""
    frame = _reader()
    if frame is None or tensor.numel() != 1:
        return False
    function = _name_function(frame)
    return function == _NUMBER_MAKER and _has_known_text(function)


def _name_function(frame: Any) -> str:
    return f"{frame.f_globals.get('__name__', '')}:{frame.f_code.co_qualname}"


def _place() -> str:
    """Return who reads now, as a text for people."""
    frame = _reader()
    if frame is None:
        return "torch"
    return f"{_name_function(frame).replace(':', '.')}, line {frame.f_lineno}"


def _reader() -> Any:
    """Return the frame of who reads now: of the innermost function that is neither torch's nor of
    this module; None where there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        passed = module.startswith(("torch.", "contextlib", "executorch.exir.dialects"))
        if module not in (*_OWN, "torch") and not passed:
            return frame
        frame = frame.f_back
    return None
