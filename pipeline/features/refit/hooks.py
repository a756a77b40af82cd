"""Reports to a `Watch` how constants are used while a unit is compiled.

It reports each operator (`operators.py`), each function that passes values to Python or to torch
without one, and each place that turns dispatching off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import CodeType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _python_dispatch

from pipeline.compile.inspect.storages import LISTENER, Listener
from pipeline.compile.preprocess.cached_backend import CachedBackend, ResultsPlace
from pipeline.features.refit.callers import (
    ADDRESS_TRIER,
    OBSERVERS,
    SERIALIZERS,
    has_known_text,
    name_function,
)
from pipeline.features.refit.operators import watched_operators
from pipeline.features.refit.watch import PLAIN, Watch, find_tensors
from pipeline.program.patching import replaced, wrapped
from pipeline.store.digest import Digest

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
# The digests of the keys of results that this process made while it watched.
_made_here: set[Digest] = set()


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Watch how the sources of `watch` are used within the context."""
    with _described_to(watch.note_described), ExitStack() as hooks:
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
        hooks.enter_context(watched_operators(watch))
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


@contextmanager
def _described_to(listener: Listener) -> Iterator[None]:
    """Report the tensors that are described within the context to a listener."""
    token: Any = LISTENER.set(listener)
    try:
        yield
    finally:
        LISTENER.reset(token)
