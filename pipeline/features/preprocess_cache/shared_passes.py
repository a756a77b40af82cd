"""Runs a backend's passes once for partitions that differ only in their constants.

The layers of a decoder are one structure with different weights. XNNPACK's passes rewrite the graph
of a partition, and most of them never look at a constant. That is not assumed: while passes run,
the tables of constants record every access. If there was no access, the rewritten graph is kept
until the method is lowered, and any partition of the same structure reuses it with its own
constants and debug handles. XNNPACK's own serializer still computes everything that depends on
values, from the SHA-256 of weights to the packing of 4-bit weights. XNNPACK is the only backend
that names its `pass_manager`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pipeline.backends import BACKENDS
from pipeline.moments import load
from pipeline.program.patching import replaced

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node

    from pipeline.features.preprocess_cache.key import Partition

_READING = (
    "__getitem__",
    "get",
    "values",
    "items",
    "copy",
    "__or__",
    "__ror__",
    "__eq__",
)
_WRITING = (
    "__setitem__",
    "__delitem__",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "clear",
    "__ior__",
)


class _Rewritten:
    """A program after its passes, to be filled with a similar partition's constants and handles."""

    def __init__(
        self,
        program: ExportedProgram,
        names: list[str],
        handles: tuple[int, ...],
    ) -> None:
        """Keep a program.

        Args:
            names: names of the program's constants before the passes, in the order of its inputs.
            handles: as in `Partition`.
        """
        self._program = program
        self._names = names
        self._handles = handles
        self._node_handles: dict[Node, int] = {}
        for node in program.graph.nodes:
            handle = node.meta.get("debug_handle")
            if handle in handles:
                self._node_handles[node] = handle

    def fill_in(
        self, program: ExportedProgram, handles: tuple[int, ...]
    ) -> ExportedProgram:
        """Return what the passes would make of a program with the same structure."""
        new_handles = dict(zip(self._handles, handles, strict=True))
        for node, handle in self._node_handles.items():
            node.meta["debug_handle"] = new_handles[handle]
        result = copy.copy(self._program)
        names = list(zip(self._names, _constant_names(program), strict=True))
        result._state_dict = _rename(program.state_dict, names)
        result._constants = _rename(program.constants, names)
        return result


class SharedPasses:
    """The rewritten graphs of one lowering, by the structure of their partitions.

    Attributes:
        shared: number of partitions whose passes were not run.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.shared = 0
        self._stack = stack
        self._is_installed = False
        self._partitions: WeakKeyDictionary[Graph, Partition] = WeakKeyDictionary()
        self._rewritten: dict[str, _Rewritten] = {}

    def expect(self, program: ExportedProgram, partition: Partition) -> None:
        """Record the description of a partition that may be passed to a backend next."""
        if not self._is_installed:
            for backend in BACKENDS.values():
                if backend.preprocessing.pass_manager:
                    manager = load(backend.preprocessing.pass_manager)
                    patch = replaced(manager, "transform", self._make_transform)
                    self._stack.enter_context(patch)
            self._is_installed = True
        self._partitions[program.graph] = partition

    def _make_transform(
        self, original: Callable[[Any], ExportedProgram]
    ) -> Callable[[Any], Any]:
        def transform(manager: Any) -> ExportedProgram:
            program = manager.exported_program
            partition = self._partitions.pop(program.graph, None)
            if partition is None:
                return original(manager)
            structure = (
                f"{partition.structure} {[kind.__name__ for kind in manager.passes]}"
            )
            rewritten = self._rewritten.get(structure)
            if rewritten is not None:
                self.shared += 1
                return rewritten.fill_in(program, partition.handles)
            names = _constant_names(program)
            result, is_independent = _watch(program, lambda: original(manager))
            if is_independent:
                self._rewritten[structure] = _Rewritten(
                    result, names, partition.handles
                )
            return result

        return transform


_shared_passes: ContextVar[SharedPasses | None] = ContextVar(
    "shared passes", default=None
)


@contextmanager
def sharing_passes(patches: bool = True, kind: str = "compile") -> Iterator[None]:
    """Share passes between partitions lowered in this context, unless it runs user code."""
    if not patches or kind != "compile":
        yield
        return
    with ExitStack() as stack:
        token = _shared_passes.set(SharedPasses(stack))
        try:
            yield
        finally:
            _shared_passes.reset(token)


def current_passes() -> SharedPasses | None:
    """Return the shared passes of the current lowering, or None."""
    return _shared_passes.get()


def _constant_names(program: ExportedProgram) -> list[str]:
    """Return the names of constants in the order of the inputs, with "" for every other input."""
    return [str(spec.target or "") for spec in program.graph_signature.input_specs]


def _rename(
    tensors: Mapping[str, Any], names: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    renamed = {}
    for name, new_name in names:
        if new_name in tensors:
            renamed[name] = tensors[new_name]
    return renamed


class _RecordingTable(dict[str, Any]):
    """A table of constants that records whether anything but their names was accessed."""

    is_touched = False

    # Without this method, `dict(table)` and `{**table}` copy the values unseen.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()


def _make_recording(name: str) -> Callable[..., Any]:
    original = getattr(dict, name)

    def call(self: _RecordingTable, *args: Any, **options: Any) -> Any:
        self.is_touched = True
        return original(self, *args, **options)

    return call


for _name in (*_READING, *_WRITING):
    setattr(_RecordingTable, _name, _make_recording(_name))


def _watch(
    program: ExportedProgram, transform: Callable[[], ExportedProgram]
) -> tuple[ExportedProgram, bool]:
    """Run the passes of a program, and return the new program and whether it can be shared.

    It can if the passes neither accessed the program's constants nor narrowed its sizes.
    """
    from torch.export import ExportedProgram

    from pipeline.compile.ranges import copy_ranges

    tables = [_RecordingTable(program._state_dict), _RecordingTable(program._constants)]
    program._state_dict, program._constants = tables
    before = copy_ranges([program])
    touched: list[bool] = []

    def make_validation(original: Callable[..., Any]) -> Callable[..., Any]:
        def validate(checked: ExportedProgram) -> None:
            # Validation only asks for the types of constants, which the structure covers.
            touched.extend(table.is_touched for table in tables)
            original(checked)
            for table in tables:
                table.is_touched = False

        return validate

    with replaced(ExportedProgram, "validate", make_validation):
        result = transform()
    touched.extend(table.is_touched for table in tables)
    is_independent = not any(touched) and result._state_dict is tables[0]
    is_independent = is_independent and result._constants is tables[1]
    is_independent = is_independent and copy_ranges([program]) == before
    result._state_dict, result._constants = (dict(table.items()) for table in tables)
    program._state_dict, program._constants = result._state_dict, result._constants
    return result, is_independent
