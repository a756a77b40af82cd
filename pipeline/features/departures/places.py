"""Where a run is: in which module, and on which lines of Python."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.fx import Node

import pipeline
from pipeline.program.module_paths import module_frames
from pipeline.program.source_lines import choose_frame, is_model_file, parse_trace
from pipeline.store.source_line import SourceLine

_CALL = nn.Module._call_impl.__code__
_OUR_FILES = str(Path(pipeline.__file__).parent)
_TORCH_FILES = str(Path(torch.__file__).parent)
# Of torch's files, those that stand between any function and the recorder.
_WRAPPERS = (
    "_ops.py",
    "_dispatch.py",
    "overrides.py",
    "_tensor.py",
    "_compile.py",
    "eval_frame.py",
)


@dataclass(frozen=True)
class ModuleName:
    """A module's qualified name, "" for the outermost, and its class."""

    path: str
    kind: str

    def __str__(self) -> str:
        if self.path:
            return f"{self.path} ({self.kind})"
        return self.kind


@dataclass(frozen=True)
class FrameCall:
    """A call in the user's code, and the innermost module around it; None outside of all."""

    frame: SourceLine
    module: ModuleName | None


@dataclass(frozen=True)
class Place:
    """Where an operator was called.

    Attributes:
        module: the innermost module; None outside of all modules.
        calls: the calls that led to it, outermost first, torch's own left out.
        function: torch's function that called the operator, such as `dropout`; "" if unknown.
    """

    module: ModuleName | None
    calls: tuple[FrameCall, ...]
    function: str = ""

    def call(self, root: Path) -> FrameCall | None:
        """Return the call in the user's code that people should look at."""
        chosen = choose_frame([call.frame for call in self.calls], root)
        return next(
            (call for call in reversed(self.calls) if call.frame is chosen), None
        )


def place_of_node(node: Node) -> Place:
    """Return the place that a node of a program was traced at; its helpers' lines may be missing,
    since torch keeps those of functions called `forward` alone."""
    modules = [
        ModuleName(frame.name, frame.kind.rpartition(".")[2])
        for frame in module_frames(node)
    ]
    calls = []
    depth = 0
    for frame in parse_trace(node.meta.get("stack_trace") or "", tracers=True):
        depth += frame.function == "forward"
        if is_model_file(frame.file):
            calls.append(FrameCall(frame, _at_depth(modules, depth)))
    return Place(modules[-1] if modules else None, tuple(calls))


def _at_depth(modules: Sequence[ModuleName], depth: int) -> ModuleName | None:
    """Return the module of the call of `forward` with this number, counted from 1 outside."""
    if modules:
        return modules[min(max(depth, 1), len(modules)) - 1]
    return None


@dataclass(frozen=True)
class EagerSite:
    """A place while Python runs; texts of lines are read when they are asked for.

    `calls` are innermost first: code, line, and the innermost module around it.
    """

    module: ModuleName | None
    calls: tuple[tuple[CodeType, int, ModuleName | None], ...]
    function: str

    def place(self) -> Place:
        calls = []
        for code, line, module in reversed(self.calls):
            text = linecache.getline(code.co_filename, line).strip()
            frame = SourceLine(code.co_filename, line, code.co_name, text)
            calls.append(FrameCall(frame, module))
        return Place(self.module, tuple(calls), self.function)


def find_eager_site(
    names: Mapping[int, tuple[str, Any]], outermost: CodeType
) -> EagerSite:
    """Return where Python is.

    Args:
        names: qualified names of modules, by id.
        outermost: the code of the function that called the reference; its callers don't count.
    """
    lines: list[tuple[CodeType, int]] = []
    calls: list[tuple[CodeType, int, ModuleName | None]] = []
    innermost: ModuleName | None = None
    function = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        code = frame.f_code
        file = code.co_filename
        if file.startswith(_TORCH_FILES):
            if code is _CALL:
                module = frame.f_locals["self"]
                name = ModuleName(
                    names.get(id(module), ("", None))[0], type(module).__name__
                )
                innermost = innermost or name
                calls += [(*line, name) for line in lines]
                lines.clear()
            elif not (lines or calls or function) and not file.endswith(_WRAPPERS):
                function = code.co_name
        elif not file.startswith(_OUR_FILES) and is_model_file(file):
            lines.append((code, frame.f_lineno))
        frame = frame.f_back
    calls += [(*line, None) for line in lines]
    return EagerSite(innermost, tuple(calls), function)
