"""Reports to a `Watch` how constants are used while a unit is compiled.

It reports each operator, each function that passes values to Python or to torch without an
operator, and each place that turns dispatching off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import CodeType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.compile.inspect.storages import described_to
from pipeline.compile.preprocess.cached_backend import CachedBackend, ResultsPlace
from pipeline.features.refit.callers import (
    ADDRESS_TRIER,
    OBSERVERS,
    SERIALIZERS,
    has_known_text,
    name_function,
)
from pipeline.features.refit.watch import (
    COPY,
    FAKES,
    PLAIN,
    Watch,
    fills_storage,
    find_tensors,
)
from pipeline.program.patching import replaced, wrapped
from pipeline.store.digest import Digest

# Operators that change where a tensor looks, but not its values.
_MOVING = frozenset(
    {"set_", "resize_", "detach_", "as_strided_", "t_", "transpose_", "squeeze_"}
)
# Functions that turn dispatching off.
_BLINDS = (
    (torch._C, "_DisableTorchDispatch"),
    (_python_dispatch, "_disable_current_modes"),
)
# Methods that pass values to Python without calling an operator. A storage's `data_ptr` returns an
# address, from which serializers take all bytes.
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
# Functions in which torch itself reads tensors without a visible operator, with the first argument
# that is read.
_READERS = (
    (torch, "to_dlpack", 0),
    (torch.utils.dlpack, "to_dlpack", 0),
    (torch._C, "_to_dlpack", 0),
    (torch, "tensor_split", 1),
    (torch.Tensor, "tensor_split", 1),
)
# Functions that turn dispatching off, which hides operators, but use no values of constants in the
# meantime. The first works on fake tensors, the second on numbers of the graph, the third on the
# state of random numbers, and the last traces branches with fake tensors. Any other makes a gap.
_HARMLESS = frozenset({
    ("torch._subclasses.fake_tensor", "in_kernel_invocation_manager"),
    ("executorch.exir.passes.scalar_to_tensor_pass", "try_coerce"),
    ("torch._dynamo.utils", "preserve_rng_state"),
    ("torch._higher_order_ops.utils", "_materialize_as_graph_inner"),
})  # fmt: skip
# The types of most arguments of operators. They hold no values of tensors.
_WITHOUT_VALUES = frozenset({
    *(*FAKES, int, float, bool, str, type(None)),
    *(torch.SymInt, torch.dtype, torch.device, torch.layout, torch.memory_format),
})  # fmt: skip
_DEVICE = torch.ops.prim.device.default
_META = torch.device("meta")
_FAKE_KEY = torch._C._TorchDispatchModeKey.FAKE

# The digests of the keys of results that this process made while it watched.
_made_here: set[Digest] = set()


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch how the sources of `watch` are used within the context."""
    with described_to(watch.note_described), ExitStack() as hooks:
        for owner, names in _HOOKS.items():
            for name in names:
                hooks.enter_context(_hooked(owner, name, watch))
        hooks.enter_context(replaced(torch, "tensor", partial(_free_tensors, watch)))
        for owner, name, first in _READERS:
            reader = _note_arguments(watch, getattr(owner, name), first)
            hooks.enter_context(_replaced(owner, name, reader))
        for owner, name in _BLINDS:
            hooks.enter_context(replaced(owner, name, partial(_blind, watch)))
        hooks.enter_context(wrapped(CachedBackend, "find", partial(_note_hits, watch)))
        hooks.enter_context(wrapped(CachedBackend, "make", _remember))
        hooks.enter_context(_Mode(watch))
        yield


def _note_hits(
    watch: Watch,
    original: Callable[..., Any],
    backend: CachedBackend,
    place: ResultsPlace,
    inputs: Sequence[tuple[ExportedProgram, Any]],
) -> Any:
    """Return the results in the store, and record a gap if they cover constants.

    Returns None for results that this process made: making them again shows how their bytes derive
    from the constants of these partitions, which are equal to earlier ones.
    """
    was_made_here = place.digest in _made_here
    results = None if was_made_here else original(backend, place, inputs)
    if results is not None and any(_holds_tensors(program) for program, _ in inputs):
        watch.note_gap(f"a result of {backend.__name__} was found in the store")
    return results


def _remember(
    original: Callable[..., Any],
    backend: CachedBackend,
    inputs: Sequence[tuple[ExportedProgram, Any]],
    make: Callable[[], Any],
    place: ResultsPlace | None = None,
) -> Any:
    """Make results, and remember that this process made them if they cover constants."""
    results = original(backend, inputs, make, place)
    if place is not None and any(_holds_tensors(program) for program, _ in inputs):
        _made_here.add(place.digest)
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


def _free_tensors(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `torch.tensor` to mark tensors made from Python values as free of constants.

    Such values were recorded when Python got them. If a list holds tensors, torch reads them itself
    without a visible operator, so they are recorded as read here.
    """

    @wraps(original)
    def tensor(*args: Any, **kwargs: Any) -> Any:
        new_tensor = original(*args, **kwargs)
        data = args[0] if args else kwargs["data"]
        for listed in [] if isinstance(data, torch.Tensor) else find_tensors(data):
            watch.note_read(listed)
        if type(new_tensor) in PLAIN:
            watch.note_free(new_tensor)
        return new_tensor

    return tensor


def _note_arguments(watch: Watch, original: Callable[..., Any], first: int) -> Any:
    """Wrap a function to record as read the tensors that it takes from argument `first` on."""

    @wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        for tensor in find_tensors([*args[first:], kwargs]):
            if type(tensor) in PLAIN:
                watch.note_read(tensor)
        return original(*args, **kwargs)

    return read


def _blind(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that turns dispatching off, to record a gap if its caller may use values."""

    harmless: dict[int, CodeType] = {}  # by id, since code is hashed by its content

    def turn_off() -> Any:
        caller = sys._getframe(1)
        if id(caller.f_code) not in harmless:
            place = str(caller.f_globals.get("__name__")), caller.f_code.co_name
            if place in _HARMLESS:
                harmless[id(caller.f_code)] = caller.f_code
            else:
                watch.note_gap(f"{'.'.join(place)} computes unseen")
        return original()

    return turn_off


class _Mode(TorchDispatchMode):
    """Reports each operator that takes a known storage to the watch."""

    supports_higher_order_operators = True

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # the default would import dynamo
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
        if func is _DEVICE and type(args[0]) is FakeTensor:
            # A third of all calls; the answer is that of `FakeTensor.__torch_dispatch__`.
            tensor = args[0]
            return (
                _META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device
            )
        keywords = kwargs or {}
        if _are_fake(args) and (not kwargs or _are_fake(kwargs.values())):
            out = _call_next(func, types, args, keywords)
            # Most results are fake: they save a call.
            return out if type(out) is FakeTensor else self._free(out)
        watch = self._watch
        plain_tensors: list[torch.Tensor] = []
        if _gather(args, plain_tensors) or _gather(keywords.values(), plain_tensors):
            watch.note_gap(f"{func} takes a tensor of a custom class")
        if not plain_tensors:
            return self._free(func(*args, **keywords))
        if any(t.is_neg() or t.is_conj() for t in plain_tensors):
            watch.note_gap(
                f"{func} takes a tensor whose values differ from its storage"
            )
        known_tensors = [t for t in plain_tensors if watch.is_known(t)]
        if not known_tensors:
            if isinstance(func, torch._ops.OpOverload):
                watch.note_readings(func, plain_tensors)
            out = func(*args, **keywords)
            is_accounted = all(map(watch.is_accounted, plain_tensors))
            return self._free(out) if is_accounted else out
        if not isinstance(func, torch._ops.OpOverload):
            watch.note_gap(f"{func} computes unseen")
            return func(*args, **keywords)
        watch.note_readings(func, plain_tensors)
        name = str(func)
        if name == COPY and type(args[0]) in PLAIN and fills_storage(args[0]):
            watch.note_free(args[0])  # whatever it held before
        describe: Callable[[], Any] = partial(watch.describe_arguments, args, keywords)
        if func._schema.is_mutable:  # the call changes its arguments
            describe = partial(list, describe())
        out = func(*args, **keywords)
        if any(
            getattr(made, "constant", None) is not None for made in find_tensors(out)
        ):
            # A fake tensor that keeps its value computes with it unseen.
            for known_tensor in known_tensors:
                watch.note_read(known_tensor)
        operator = func._schema.name.partition("::")[2]
        if func._schema.is_mutable and operator not in _MOVING:
            for changed in _changed(func, args, keywords):
                watch.note_change(name, changed, describe())
        else:
            watch.note_result(name, describe, out)
        return out

    def _free(self, out: Any) -> Any:
        """Mark the plain tensors among an operator's results as free of constants."""
        if type(out) is FakeTensor:
            return out
        new_tensors: list[torch.Tensor] = []
        _gather((out,), new_tensors)
        for new_tensor in new_tensors:
            self._watch.note_free(new_tensor)
        return out


def _hooked(owner: Any, name: str, watch: Watch) -> Any:
    original = getattr(owner, name)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        caller = frame.f_globals.get("__name__", "")
        function = name_function(frame)
        if not isinstance(self, torch.Tensor) and function in SERIALIZERS:
            if not has_known_text(function):
                watch.note_gap(f"{function} has unknown source code")
            watch.note_stored(self)
        elif (
            caller not in OBSERVERS
            and function != ADDRESS_TRIER
            and (type(self) in PLAIN or not isinstance(self, torch.Tensor))
        ):
            watch.note_read(self)
        return original(self, *args, **kwargs)

    return _replaced(owner, name, read)


@contextmanager
def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of a class or module within the context, even an inherited one."""
    if name in vars(owner):
        with replaced(owner, name, lambda original: function):
            yield
        return
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name)


def _are_fake(values: Iterable[Any]) -> bool:
    """Return whether arguments hold no values of tensors, as those of most operators."""
    if _WITHOUT_VALUES.issuperset(map(type, values)):
        return True
    for value in values:
        kind = type(value)
        if kind is list or kind is tuple:
            if not _WITHOUT_VALUES.issuperset(map(type, value)):
                return False
        elif kind not in _WITHOUT_VALUES:
            return False
    return True


def _call_next(func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call an operator on fake tensors in the next mode.

    If that is the mode of fake tensors, it is called as torch's dispatcher would call it, which
    saves a second trip through the dispatcher.
    """
    is_operator = isinstance(func, torch._ops.OpOverload)
    if is_operator and torch._C._len_torch_dispatch_stack() == 1:
        mode = torch._C._unset_dispatch_mode(_FAKE_KEY)
        if mode is not None:
            try:
                out = mode.__torch_dispatch__(func, types, args, kwargs)
            finally:
                torch._C._set_dispatch_mode(mode)
            if out is not NotImplemented:
                return out
    return func(*args, **kwargs)


def _gather(values: Iterable[Any], plain_tensors: list[torch.Tensor]) -> bool:
    """Append the plain tensors among the arguments of an operator to a list.

    Returns whether there is any other tensor that has values.
    """
    others = False
    for value in values:
        kind = type(value)
        if kind in _WITHOUT_VALUES:
            continue
        if kind in PLAIN:
            if value.layout is torch.strided:
                plain_tensors.append(value)
            else:
                others = True
        elif kind is tuple or kind is list:
            others |= _gather(value, plain_tensors)
        elif kind is dict:
            others |= _gather(value.values(), plain_tensors)
        elif isinstance(value, torch.Tensor) and kind not in FAKES:
            others = True
    return others


def _changed(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operator writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for tensor in find_tensors(value):
            if type(tensor) in PLAIN:
                yield tensor
