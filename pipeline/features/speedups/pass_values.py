"""Keeps the values that passes of ExecuTorch compute, so that later passes don't repeat them.

Each pass that changes a graph traces it again and computes every operator on fake tensors, even if
only names or targets changed. For a delegate, that runs the whole graph of the partition. The value
of a call depends on its operator and its arguments alone, so a call of the same operator with the
same objects has the value that an earlier pass computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ProxyValue, _ExportPassBase
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

_Function = Callable[..., Any]
# Operators that make symbols, which must be new ones at each call.
_MAKES_SYMBOLS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_CONSTANTS = (
    type(None),
    bool,
    int,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class _CallValues:
    """The values of calls, by operator and arguments.

    Calls in one graph that are equal have values of their own, as if each had been computed: the
    n-th such call of a later pass has the n-th value.
    """

    def __init__(self) -> None:
        self._calls: dict[Any, list[tuple[Any, Any]]] = {}
        # The ids of kept values that don't share memory with arguments.
        self._owners: set[int] = set()
        self._tracer: Any = None
        self._seen: Counter[Any] = Counter()  # equal calls of the present graph
        self._used: set[int] = set()  # ids of its values

    def compute(
        self, tracer: Any, target: Any, arguments: Any, earlier: Any, call: _Function
    ) -> Any:
        """Return the value of a call, computed by `call` unless an earlier pass did.

        Args:
            earlier: the value that the node had from which the pass makes the call.
        """
        if tracer is not self._tracer:
            self._tracer = tracer
            self._seen.clear()
            self._used.clear()
        value = self._find_or_compute(target, arguments, earlier, call)
        self._used.add(id(value))
        return value

    def _find_or_compute(
        self, target: Any, arguments: Any, earlier: Any, call: _Function
    ) -> Any:
        if not _is_pure(target):
            return call()
        try:
            key = _operator(target), _describe(arguments)
        except _IncomparableError:
            return call()
        number = self._seen[key]
        self._seen[key] += 1
        values = self._calls.setdefault(key, [])
        if number < len(values):
            return values[number][0]
        value = call()
        if number > len(values) or not _is_plain(value):
            return value
        if _owns_memory(value, arguments):
            if self._is_unchanged(value, earlier):
                value = earlier
            self._owners.add(id(value))
        values.append((value, arguments))  # arguments that live keep their identity
        return value

    def _is_unchanged(self, value: Any, earlier: Any) -> bool:
        """Return whether a call that a pass changed has the same kind of value as before.

        If so, calls that take the value are the same as before, too.
        """
        return (
            id(earlier) in self._owners
            and id(earlier) not in self._used
            and _describe_tensor(value) == _describe_tensor(earlier)
        )


_values: _CallValues | None = None


@contextmanager
def kept_values() -> Iterator[None]:
    """Within the context, passes take over the values that earlier passes in it computed."""
    global _values
    outer = _values
    _values = _CallValues()
    try:
        yield
    finally:
        _values = outer


def make_keeping(original: _Function) -> _Function:
    """Return a function within whose call passes take over values of earlier passes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with kept_values():
            return original(*args, **kwargs)

    return call


def make_call(original: _Function) -> _Function:
    """Return a replacement for `_fx`, by which passes compute a call and add its node."""

    def trace(
        self: _ExportPassBase, kind: str, target: Any, args: Any, kwargs: Any, meta: Any
    ) -> ProxyValue:
        values = _values
        if values is None or kind != "call_function":
            return original(self, kind, target, args, kwargs, meta)
        data = _read((args, kwargs), "data")
        value = values.compute(
            self.tracer,
            target,
            data,
            meta.data.get("val"),
            lambda: self.interpreter.call_function(target, *data),
        )
        name = None
        if isinstance(target, OpOverload):
            name = self.tracer.graph._target_to_str(target.overloadpacket.__name__)
        proxies = _read((args, kwargs), "proxy")
        proxy = self.tracer.create_proxy(kind, target, *proxies, name=name)
        proxy.node.meta.update(meta.data)
        self.tracer.set_metadata(proxy.node, value)
        return ProxyValue(value, proxy)

    return trace


def _read(nest: Any, name: str) -> Any:
    """Return a nest of arguments with each `ProxyValue` replaced by an attribute of it."""
    return pytree.tree_map_only(ProxyValue, lambda value: getattr(value, name), nest)


def _operator(target: Any) -> Any:
    return target._op if isinstance(target, EdgeOpOverload) else target


def _is_pure(target: Any) -> bool:
    """Return whether a call has no effect, and a value that its arguments determine."""
    if target is executorch_call_delegate:
        return True
    operator = _operator(target)
    if not isinstance(operator, OpOverload):
        return False
    return not operator._schema.is_mutable and not any(
        tag in operator.tags for tag in _MAKES_SYMBOLS
    )


class _IncomparableError(Exception):
    """An argument has no description by which calls can be compared."""


def _describe(argument: Any) -> Any:
    """Return a description that tells whether arguments are equal or, if tensors, the same object.

    Raises _IncomparableError if an argument has none.
    """
    kind = type(argument)
    if isinstance(argument, list | tuple):
        return tuple(map(_describe, argument))
    if isinstance(argument, dict):
        return tuple((name, _describe(value)) for name, value in argument.items())
    if kind in _CONSTANTS:
        return kind, argument
    if kind is float:
        return kind, argument.hex()
    if isinstance(argument, torch.Tensor):
        return torch.Tensor, id(argument)
    if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
        return kind, id(argument.node.shape_env), argument.node.expr
    if isinstance(argument, torch.nn.Module):  # a lowered partition
        return torch.nn.Module, id(argument)
    raise _IncomparableError


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of fake tensors without new symbols."""
    tensors: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    return all(
        type(tensor) is FakeTensor and not free_unbacked_symbols(tensor)
        for tensor in tensors
    )


def _owns_memory(value: Any, arguments: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    storage = value.untyped_storage()._cdata
    return all(
        argument.untyped_storage()._cdata != storage
        for argument in pytree.tree_leaves(arguments)
        if isinstance(argument, torch.Tensor)
    )


def _describe_tensor(tensor: Any) -> tuple[Any, ...]:
    return (
        _describe([tensor.shape, tensor.stride(), tensor.storage_offset()]),
        tensor.dtype,
        tensor.device,
        tensor.layout,
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.constant is None or id(tensor),
    )
