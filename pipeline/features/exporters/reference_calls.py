"""Calls of an exporter's references, which are plain PyTorch modules, in a process of the exporter.

That process runs the exporter once. Each sequence of calls runs in a fork of it, so it starts from
the state in which the exporter left its modules, whatever references change. If forks are not safe,
the modules' state is restored instead.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pipeline.features.exporters.export import explaining_imports, load_exporter
from pipeline.features.exporters.exporter import (
    Reference,
    call_export_methods,
    check_eager,
    find_references,
    parse_yielded,
)
from pipeline.features.exporters.exporter_imports import import_afresh, importing_for
from pipeline.features.exporters.neutral import neutral_process
from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.kinds.export import ExportInputs
from pipeline.program.containers import make_plain
from pipeline.program.inputs import InputSet, load_inputs, save_inputs
from pipeline.program.operator_libraries import load_libraries
from pipeline.run.isolated import ForkWatch, fork_is_safe, run_isolated
from pipeline.store.errors import PipelineError
from pipeline.store.reasons import reason
from pipeline.store.remedies import explain_error

_RESET, _END = b"R", b"E"  # these have no answers; any other message is a call
_GAVE, _FAILED = b"+", b"-"  # prefixes of an answer
# By method, its reference, and the nesting of its program's arguments.
_References = Mapping[str, tuple[Reference, pytree.TreeSpec]]


class _EndedError(PipelineError):
    """The process of the exporter has ended, and its answer says why."""


class ReferenceCalls:
    """The references of an exporter.

    Attributes:
        methods: the methods that have a reference.
    """

    def __init__(self, line: Connection, seconds: float) -> None:
        """Wait until the exporter has run; each later call may take at most `seconds`."""
        self._line = line
        self._seconds = seconds
        self.methods: list[str] = json.loads(self._receive(None))

    def reset(self) -> None:
        """Let the next call start from the state in which the exporter left its modules."""
        self._line.send_bytes(_RESET)

    def call(self, method: str, leaves: Sequence[Any]) -> Any:
        """Return a reference's outputs for flat arguments, in plain containers.

        Raises PipelineError if the reference raises.
        """
        self._line.send_bytes(save_inputs([InputSet(tuple(leaves), {}, method)]))
        answer = self._receive(self._seconds)
        if answer[:1] == _FAILED:
            raise PipelineError(answer[1:].decode())
        (outputs,) = load_inputs(answer[1:])
        return outputs.args[0]

    def _receive(self, seconds: float | None) -> bytes:
        if not self._line.poll(seconds):
            raise PipelineError(f"no answer within {seconds:g} s (validate.timeout)")
        try:
            return self._line.recv_bytes()
        except (EOFError, ConnectionResetError):
            raise _EndedError("the process of the exporter has ended") from None


class _ReferenceWatch(ForkWatch):
    """Passes references to a function while the fork lives, and keeps the function's `result`."""

    def __init__(
        self, use: Callable[[ReferenceCalls], Any] | None, seconds: float
    ) -> None:
        super().__init__()
        self.result: Any = None
        self._use = use
        self._seconds = seconds

    def __reduce__(self) -> tuple[type[_ReferenceWatch], tuple[None, float]]:
        """Pickle without the function, which is called only in this process."""
        return _ReferenceWatch, (None, self._seconds)

    def begin(self, line: socket.socket) -> None:
        self.line = line

    def attend(self, child: int, line: socket.socket) -> None:
        assert self._use is not None, "the process that forks has the function"
        with Connection(os.dup(line.fileno())) as connection:
            try:
                calls = ReferenceCalls(connection, self._seconds)
                self.result = self._use(calls)
                connection.send_bytes(_END)
            except (_EndedError, BrokenPipeError):
                return


def call_references(
    action: Action[ExportInputs],
    root: Path,
    seconds: float,
    use: Callable[[ReferenceCalls], Any],
) -> Any:
    """Return the result of a function that uses the references of an exporter.

    Args:
        action: the export, whose exporter must match its key.
        root: the workspace.
        seconds: the most that a call may take.
        use: the function, called with the references while their process is alive.

    Raises PipelineError if the exporter or the function raises, or a reference ends its process.
    """
    watch = _ReferenceWatch(use, seconds)
    serve = partial(_serve, action, root, watch)
    run_isolated(serve, watch, describe=partial(explain_error, root=root))
    return watch.result


def _serve(action: Action[ExportInputs], root: Path, watch: _ReferenceWatch) -> None:
    """Run an exporter in this process, which serves only it, and make the requested calls."""
    path = root / action.inputs.path
    with importing_for(root, path), neutral_process(root):
        import_afresh(path.parent)
        load_libraries(action.libraries, root)
        with explaining_imports(path):
            references = _find_references(path, action.inputs.parameters)
        with Connection(os.dup(watch.line.fileno())) as line:
            line.send_bytes(json.dumps([*references]).encode())
            serve = partial(_serve_sequence, line, references)
            if fork_is_safe():
                while run_isolated(serve):
                    pass
                return
            modules = [reference for reference, _ in references.values()]
            restores = [*call_all("keep_state", modules)]
            while serve():
                for restore in restores:
                    restore()


def _find_references(path: Path, parameters: Mapping[str, Any]) -> _References:
    """Run an exporter, and keep only the parts of its methods that calls of references need."""
    module = load_exporter(path, path.read_bytes())
    returned = call_export_methods(module, parameters)
    references: dict[str, tuple[Reference, pytree.TreeSpec]] = {}
    if isinstance(returned, Iterator):
        for value in returned:
            name, program, reference = parse_yielded(module, value)
            exported = {} if reference is None else {name: reference}
            check_eager(module, exported)
            for method_reference in find_references(
                module, [name], exported, parameters
            ).values():
                references[name] = method_reference, program.call_spec.in_spec
        return references
    programs, exported = returned
    for name, reference in find_references(
        module, programs, exported, parameters
    ).items():
        references[name] = reference, programs[name].call_spec.in_spec
    return references


def _serve_sequence(line: Connection, references: _References) -> bool:
    """Make the calls of a sequence; return whether another one follows."""
    torch.set_num_threads(1)  # a fork doesn't have its parent's threads
    while (message := line.recv_bytes()) not in (_RESET, _END):
        line.send_bytes(_answer(message, references))
    return message == _RESET


def _answer(message: bytes, references: _References) -> bytes:
    try:
        (inputs,) = load_inputs(message)
        reference, spec = references[inputs.origin]
        args, kwargs = pytree.tree_unflatten(list(inputs.args), spec)
        with torch.no_grad():
            outputs = reference(*args, **kwargs)
        return _GAVE + save_inputs([InputSet((make_plain(outputs),))])
    except Exception as error:  # whatever a reference raises for these inputs
        return _FAILED + f"{type(error).__name__}: {reason(error)}".encode()
