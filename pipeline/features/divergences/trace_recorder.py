"""Records a run, operator by operator, while the caller reports where the run is.

That is at a node of a program, or on a line of Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from pipeline.features.divergences.sketches import Sketch, sketch
from pipeline.features.divergences.storages import (
    StorageKeeper,
    memory_key,
    storage_key,
)
from pipeline.features.divergences.trace import (
    Leaf,
    Site,
    Trace,
    TracedValue,
    TraceEvent,
    base_operator,
)

_LARGE = 1 << 16  # least values of a weight whose views aren't read again
_UNWRITTEN = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
)
_FACTORIES = frozenset(
    {
        "full",
        "full_like",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "scalar_tensor",
    }
    | {"zeros", "zeros_like", "fill", "zero"}
)
_VIEWS = frozenset(
    {
        "_to_copy",
        "_unsafe_view",
        "alias",
        "as_strided",
        "clone",
        "contiguous",
        "copy",
        "detach",
    }
    | {
        "expand",
        "flatten",
        "lift_fresh",
        "lift_fresh_copy",
        "permute",
        "repeat",
        "reshape",
    }
    | {
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "to",
        "transpose",
        "unfold",
    }
    | {"unsqueeze", "view", "unbind", "cat", "stack", "constant_pad_nd"}
)
# Batch norm writes these in training mode, which its schema doesn't declare.
_SILENT_WRITES = ("running_mean", "running_var")
_SOURCE = "source"  # origin of a uniform value that no arithmetic made


class TraceRecorder(TorchDispatchMode, Generic[Site]):
    """Records the operators that run while it is active.

    Args:
        locate: returns the current site of the run.
        labels: kind and name of tensors that exist before the run, keyed by their memory.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        locate: Callable[[], Site],
        labels: Mapping[tuple[Any, ...], tuple[str, str]],
        storages: StorageKeeper,
    ) -> None:
        super().__init__()
        self.trace: Trace[Site] = Trace()
        self._locate = locate
        self._labels = labels
        self._storages = storages
        # By tensor: the number of writes to its memory when it was last seen, and its value.
        self._values = WeakIdKeyDictionary()
        self._writes: Counter[tuple[Any, ...]] = Counter()  # by memory
        self._contents: dict[tuple[str, Sketch], int] = {}  # by origin and content
        self._latest: dict[Sketch | None, int] = {}
        self._labelled: dict[Any, int] = {}  # leaves, by label and content
        self._seen: set[tuple[str, str]] = set()
        self._weights: dict[
            tuple[Any, ...], tuple[int, int]
        ] = {}  # value, offset, by memory

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._run_higher_order(func, args, kwargs)
        site = self._locate()
        tensors = list(_tensors((args, kwargs)))
        reads = tuple(self._read(tensor, site) for tensor in tensors)
        changed = list(_written_arguments(func, args, kwargs))
        self._storages.before_write(changed)
        result = func(*args, **kwargs)
        self._storages.after_call(result, tensors)
        self._writes.update(memory_key(tensor) for tensor in changed)
        self._record(
            func, args, kwargs, reads, [*_tensors(result), *changed], result, site
        )
        return result

    def _run_higher_order(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """Run control flow; record a branch operator by operator, any other body as one call."""
        if func.name() == "cond" and len(args) == 4:
            predicate, then, otherwise, operands = args
            # A mode is off within its own dispatch, and must see the operators of the branch.
            with self:
                return (then if bool(predicate) else otherwise)(*operands)
        site = self._locate()
        reads = tuple(self._read(tensor, site) for tensor in _tensors((args, kwargs)))
        result = func(*args, **kwargs)
        self._record(func, (), {}, reads, list(_tensors(result)), result, site)
        return result

    def _record(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        reads: tuple[int, ...],
        written: Sequence[Tensor],
        result: Any,
        site: Site,
    ) -> None:
        number = None
        if isinstance(result, (bool, int, float, complex)):
            number = result
        if not written and number is None:
            return  # an assertion, a size
        name = str(func) if isinstance(func, OpOverload) else func.name()
        origin = self._origin(base_operator(name), reads)
        bases = []
        if _is_mutable(func):
            # Writing to a view changes the tensor that it is a view of.
            bases = [t._base for t in written if t._base is not None]
        values = [self._write(tensor, origin, reads) for tensor in (*written, *bases)]
        scalars = dict(_scalars(func, args, kwargs))
        place = len(self.trace.events)
        is_random = _is_random(func, scalars)
        event = TraceEvent(
            place, name, reads, tuple(values), scalars, site, number, is_random
        )
        self.trace.events.append(event)
        for value in values:
            # Leaves have no producer, although an operator may return one unchanged.
            if value not in self.trace.leaves:
                self.trace.producers.setdefault(value, event)

    def _origin(self, base: str, reads: Sequence[int]) -> str | None:
        """Return the mark that separates this operator's uniform results from others.

        Returns None if the operator leaves its result's memory unwritten.
        """
        if base in _UNWRITTEN:
            return None
        if base in _FACTORIES or (base in _VIEWS and reads):
            return _SOURCE
        return base

    def _read(self, tensor: Tensor, site: Site | None) -> int:
        writes, value = self._values.get(tensor, (-1, 0))
        if writes == self._writes[memory_key(tensor)]:
            return value
        content = sketch(tensor)
        label = self._labels.get(storage_key(tensor), ("", ""))
        value = self._labelled.get((label, content), -1)
        # A labelled tensor that had other content before was written to: find the value by content.
        if value < 0 and (label == ("", "") or label in self._seen):
            value = self._latest.get(content, -1)
        if value < 0:
            value = self._add(content, _SOURCE if content and content.uniform else "")
            self.trace.leaves[value] = Leaf(*label, tensor.dtype, site)
            self._labelled[label, content] = value
            if label[0] in ("parameter", "buffer", "constant"):
                entry = (value, tensor.storage_offset())
                self._weights.setdefault(memory_key(tensor), entry)
            self._seen.add(label)
        self._remember(tensor, value)
        return value

    def _write(self, tensor: Tensor, origin: str | None, reads: Sequence[int]) -> int:
        content = None if origin is None else self._sketch_result(tensor, reads)
        origin = origin if origin and content and content.uniform else ""
        value = self._contents.get((origin, content), -1) if content is not None else -1
        if value < 0:
            value = self._add(content, origin)
        self._remember(tensor, value)
        return value

    def _sketch_result(self, tensor: Tensor, reads: Sequence[int]) -> Sketch | None:
        """Return the sketch of a result.

        The sketch of a view of a large weight is derived from the weight's, since each layer
        transposes its own weight.
        """
        memory = memory_key(tensor)
        if (
            tensor.numel() >= _LARGE
            and not self._writes[memory]
            and memory in self._weights
        ):
            value, offset = self._weights[memory]
            weight = self.trace.values[value]
            if weight is not None and value in reads:
                start = tensor.storage_offset() - offset
                place = (start, tuple(tensor.shape), tensor.stride(), tensor.dtype)
                return replace(weight, count=tensor.numel(), geometry=place)
        return sketch(tensor)

    def _add(self, content: Sketch | None, origin: str) -> int:
        value = len(self.trace.values)
        self.trace.values.append(content)
        self.trace.origins.append(origin)
        if content is not None:
            self._contents.setdefault((origin, content), value)
        return value

    def _remember(self, tensor: Tensor, value: int) -> None:
        self._values[tensor] = (self._writes[memory_key(tensor)], value)
        content = self.trace.values[value]
        if content is not None:
            self._latest[content] = value

    def add_output(self, label: str, value: Any) -> None:
        """Add an output of the run, or a tensor of its final state."""
        self.trace.outputs[label] = value
        if isinstance(value, Tensor):
            self.trace.outputs[label] = TracedValue(self._read(value, None))


def _tensors(tree: Any) -> Iterator[Tensor]:
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf


def _is_mutable(func: Any) -> bool:
    return isinstance(func, OpOverload) and func._schema.is_mutable


def _named_arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield each argument's declaration in the schema, with its value in a call."""
    for number, argument in enumerate(func._schema.arguments):
        if number < len(args):
            yield argument, args[number]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]
        elif argument.has_default_value():
            yield argument, argument.default_value


def _written_arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[Tensor]:
    if not isinstance(func, OpOverload):
        return
    silent = _SILENT_WRITES if func is torch.ops.aten.native_batch_norm.default else ()
    for argument, value in _named_arguments(func, args, kwargs):
        declared = argument.alias_info is not None and argument.alias_info.is_write
        if declared or argument.name in silent:
            yield from _tensors(value)


def _is_random(func: Any, scalars: Mapping[str, Any]) -> bool:
    """Return whether a call draws random numbers, which attention without dropout doesn't."""
    if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
        return False
    return all(
        scalars.get(name, True) for name in ("dropout_p", "dropout", "p", "train")
    )


def _scalars(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    if isinstance(func, OpOverload):
        for argument, value in _named_arguments(func, args, kwargs):
            if not any(True for _ in _tensors(value)):
                yield argument.name, value
