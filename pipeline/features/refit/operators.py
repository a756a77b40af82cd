"""Reports each operator that takes a known storage to a `Watch`.

A mode of torch sees all operators. In a lowering, most are called on fake tensors, which hold no
values, so the mode leaves torch's stack while it holds a mode of fake tensors. That mode then
reports the operators that it computes. It finds the others in its cache, and never computes them,
but none of these take plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from inspect import unwrap
from threading import get_ident
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.features.refit.watch import (
    COPY,
    FAKES,
    PLAIN,
    Watch,
    fills_storage,
    find_tensors,
)
from pipeline.program.patching import digest_source, replaced
from pipeline.store.releases import installed_release

# Operators that change where a tensor looks, but not its values.
_MOVING = frozenset(
    {"set_", "resize_", "detach_", "as_strided_", "t_", "transpose_", "squeeze_"}
)
# The types of most arguments of operators. They hold no values of tensors.
_WITHOUT_VALUES = frozenset({
    *(*FAKES, int, float, bool, str, type(None)),
    *(torch.SymInt, torch.dtype, torch.device, torch.layout, torch.memory_format),
})  # fmt: skip
# The functions that put a mode of fake tensors on torch's stack of modes and take it off, and those
# that look for an operator in its cache, but not for one that takes plain tensors.
_REVIEWED = (
    fake_tensor.unset_fake_temporarily,
    FakeTensorMode.__enter__,
    FakeTensorMode.__exit__,
    FakeTensorMode.dispatch,
    FakeTensorMode._cached_dispatch_impl,
    FakeTensorMode._cache_key,
    FakeTensorMode._prep_args_for_hash,
    _python_dispatch._push_mode,
    _python_dispatch._pop_mode,
)
# The functions in C++ through which torch changes its stack of modes.
_OF_STACK = (
    (torch._C, "_set_dispatch_mode"),
    (torch._C, "_unset_dispatch_mode"),
    (_python_dispatch, "_push_on_torch_dispatch_stack"),
    (_python_dispatch, "_pop_torch_dispatch_stack"),
)
_DEVICE = torch.ops.prim.device.default
_META = torch.device("meta")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_FUNCTIONAL = torch._C._TorchDispatchModeKey.FUNCTIONAL
_DECISIVE = (FakeTensorMode, FunctionalTensorMode)
_find_mode = torch._C._get_dispatch_mode
_DIGEST = "0836d6dc17128871bb124ff8c91e40ea3fa1581c9a6078e60b9986f00c317adc"


@contextmanager
def watched_operators(watch: Watch) -> Iterator[None]:
    """Report the operators that are called within the context to `watch`."""
    mode = _Mode(watch)
    with ExitStack() as hooks:
        if _is_reviewed():
            for owner, name in _OF_STACK:
                hooks.enter_context(replaced(owner, name, mode.settle_after))
            hooks.enter_context(
                replaced(FakeTensorMode, "_dispatch_impl", mode.see_through)
            )
            hooks.enter_context(
                replaced(FakeTensorMode, "__torch_dispatch__", _answer_devices)
            )
        hooks.enter_context(mode)
        yield


@cache
def _is_reviewed() -> bool:
    """Return whether modes of fake tensors are known to compute operators on plain tensors."""
    name = f"{FakeTensorMode.__module__}:FakeTensorMode.dispatch"
    return digest_source(*_REVIEWED) == installed_release().digest_of(name, _DIGEST)


def _answer_devices(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method with which a mode of fake tensors takes operators, to answer sooner."""
    # Its wrapper counts the calls, for people who develop torch.
    take = unwrap(original)

    def dispatch(
        mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return _find_device(args[0])
        return take(mode, func, types, args, kwargs or {})

    return dispatch


def _find_device(tensor: FakeTensor) -> torch.device:
    """Answer the most frequent operator as `FakeTensor.__torch_dispatch__` does."""
    return _META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


class _Mode(TorchDispatchMode):
    """Reports each operator that takes a known storage to the watch.

    It leaves torch's stack while that holds a mode of fake tensors, but none that makes operators
    functional. `see_through` takes its place then.
    """

    supports_higher_order_operators = True

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._aside: int | None = None  # the thread whose stack it has left
        self._push = _python_dispatch._push_on_torch_dispatch_stack
        self._pop = _python_dispatch._pop_torch_dispatch_stack

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # the default would import dynamo
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __exit__(self, *error: Any) -> None:
        self._return()
        super().__exit__(*error)

    def settle_after(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that changes torch's stack, to leave it or to return to it."""

        def change(*args: Any) -> Any:
            mode = original(*args)
            changed = args[0] if mode is None else mode
            if isinstance(changed, _DECISIVE):
                if _find_mode(_FAKE) is None or _find_mode(_FUNCTIONAL) is not None:
                    self._return()
                else:
                    self._leave()
            return mode

        return change

    def _leave(self) -> None:
        if self._aside is None:
            place = torch._C._len_torch_dispatch_stack() - 1
            if torch._C._get_dispatch_stack_at(place) is self:
                self._pop(None)
                self._aside = get_ident()

    def _return(self) -> None:
        if self._aside == get_ident():
            self._push(self)
            self._aside = None

    def see_through(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method in which a mode of fake tensors computes an operator, to watch it.

        Operators that it calls in turn are not watched, as when this mode is on the stack.
        """

        def compute(
            mode: FakeTensorMode, func: Any, types: Any, args: Any, kwargs: Any
        ) -> Any:
            call = partial(original, mode, func, types, args, kwargs)
            thread = self._aside
            if thread != get_ident():
                return call()
            self._aside = None
            try:
                return self._watch_call(func, args, kwargs, call)
            finally:
                self._aside = thread

        return compute

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return _find_device(args[0])
        keywords = kwargs or {}
        return self._watch_call(func, args, keywords, partial(func, *args, **keywords))

    def _watch_call(
        self,
        func: Any,
        args: Any,
        kwargs: Mapping[str, Any],
        call: Callable[[], Any],
    ) -> Any:
        """Call an operator and report it."""
        if _are_fake(args) and (not kwargs or _are_fake(kwargs.values())):
            return self._free(call())
        watch = self._watch
        plain_tensors: list[torch.Tensor] = []
        if _gather(args, plain_tensors) or _gather(kwargs.values(), plain_tensors):
            watch.note_gap(f"{func} takes a tensor of a custom class")
        if not plain_tensors:
            return self._free(call())
        for tensor in plain_tensors:
            if tensor.is_neg() or tensor.is_conj():
                watch.note_gap(
                    f"{func} takes a tensor whose values differ from its storage"
                )
        known_tensors = watch.find_known(plain_tensors)
        if not known_tensors:
            if isinstance(func, torch._ops.OpOverload):
                watch.note_readings(func, plain_tensors)
            out = call()
            is_accounted = all(map(watch.is_accounted, plain_tensors))
            return self._free(out) if is_accounted else out
        if not isinstance(func, torch._ops.OpOverload):
            watch.note_gap(f"{func} computes unseen")
            return call()
        watch.note_readings(func, plain_tensors)
        name, is_mutable, changes_values = _look_up(func)
        if name == COPY and type(args[0]) in PLAIN and fills_storage(args[0]):
            watch.note_free(args[0])  # whatever it held before
        describe: Callable[[], Any] = partial(watch.describe_arguments, args, kwargs)
        if is_mutable:  # the call changes its arguments
            describe = partial(list, describe())
        out = call()
        results = [out] if type(out) in PLAIN else list(find_tensors(out))
        for result in results:
            if getattr(result, "constant", None) is not None:
                # A fake tensor that keeps its value computes with it unseen.
                for known_tensor in known_tensors:
                    watch.note_read(known_tensor)
        if changes_values:
            for changed in _changed(func, args, kwargs):
                watch.note_change(name, changed, describe())
        else:
            watch.note_result(name, describe, results)
        return out

    def _free(self, out: Any) -> Any:
        """Mark the plain tensors among an operator's results as free of constants."""
        if type(out) is FakeTensor:  # as most
            return out
        new_tensors: list[torch.Tensor] = []
        _gather((out,), new_tensors)
        for new_tensor in new_tensors:
            self._watch.note_free(new_tensor)
        return out


@cache
def _look_up(func: Any) -> tuple[str, bool, bool]:
    """Return an operator's name, and whether it changes its arguments, and their values."""
    is_mutable = func._schema.is_mutable
    operator = func._schema.name.partition("::")[2]
    return str(func), is_mutable, is_mutable and operator not in _MOVING


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
