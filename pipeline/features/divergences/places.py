"""The place of a run: in which module, and on which lines of Python, an operator is called."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.fx import Node

import pipeline
from pipeline.program.module_paths import Frame, module_frames
from pipeline.program.source_lines import choose_frame, is_model_file, parse_trace
from pipeline.store.source_line import SourceLine

_CALL = nn.Module._call_impl.__code__
_OUR_FILES = str(Path(pipeline.__file__).parent)
_TORCH_FILES = str(Path(torch.__file__).parent)
# Torch's files that are always between a function and the recorder.
_WRAPPERS = (
    "_ops.py",
    "_dispatch.py",
    "overrides.py",
    "_tensor.py",
    "_compile.py",
    "eval_frame.py",
)


@dataclass(frozen=True)
class FrameCall:
    """A call in the user's code, and the innermost module around it, or None if there is none."""

    frame: SourceLine
    module: Frame | None


@dataclass(frozen=True)
class Place:
    """The place where an operator was called.

    Attributes:
        module: the innermost module, or None outside all modules.
        calls: the calls that led to it, outermost first, without torch's.
        function: torch's function that called the operator, such as `dropout`; "" if unknown.
    """

    module: Frame | None
    calls: tuple[FrameCall, ...]
    function: str = ""

    def call(self, root: Path) -> FrameCall | None:
        """Return the call in the user's code to show to the user."""
        chosen = choose_frame([call.frame for call in self.calls], root)
        return next(
            (call for call in reversed(self.calls) if call.frame is chosen), None
        )


def place_of_node(node: Node) -> Place:
    """Return the place at which a node of a program was traced.

    The lines of helpers may be missing, since torch keeps only those in functions called `forward`.
    """
    modules = module_frames(node)
    calls = []
    depth = 0
    for frame in parse_trace(node.meta.get("stack_trace") or "", tracers=True):
        # Each `forward` in the trace is one module deeper.
        depth += frame.function == "forward"
        if is_model_file(frame.file):
            calls.append(FrameCall(frame, _at_depth(modules, depth)))
    return Place(modules[-1] if modules else None, tuple(calls))


def _at_depth(modules: Sequence[Frame], depth: int) -> Frame | None:
    """Return the module of the nth call of `forward`, counted from 1 outside."""
    if modules:
        return modules[min(max(depth, 1), len(modules)) - 1]
    return None


def find_eager_place(
    names: Mapping[int, tuple[str, Any]], outermost: CodeType
) -> Place:
    """Return the place that Python is currently executing.

    Args:
        names: qualified names of modules, by id.
        outermost: the code of the function that called the reference; its callers don't count.
    """
    lines: list[SourceLine] = []
    calls: list[FrameCall] = []  # innermost first
    innermost: Frame | None = None
    function = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        code = frame.f_code
        file = code.co_filename
        if file.startswith(_TORCH_FILES):
            if code is _CALL:
                module = frame.f_locals["self"]
                path, _ = names.get(id(module), ("", None))
                around = Frame("", path, type(module).__name__)
                innermost = innermost or around
                calls += [FrameCall(line, around) for line in lines]
                lines.clear()
            # Only next to the operator: further out, torch's functions belong to calls of modules.
            elif not (lines or calls or function) and not file.endswith(_WRAPPERS):
                function = code.co_name
        elif not file.startswith(_OUR_FILES) and is_model_file(file):
            lines.append(_read_line(code, frame.f_lineno))
        frame = frame.f_back
    calls += [FrameCall(line, None) for line in lines]
    return Place(innermost, tuple(reversed(calls)), function)


# Every operator of a run looks up the lines of its callers, which are mostly the same.
@lru_cache(maxsize=1 << 12)
def _read_line(code: CodeType, line: int) -> SourceLine:
    text = linecache.getline(code.co_filename, line).strip()
    return SourceLine(code.co_filename, line, code.co_name, text)


def name_class(module: Frame) -> str:
    """Return the name of a module's class, without the file."""
    return module.kind.rpartition(".")[2]


def name_module(module: Frame) -> str:
    """Return a module's name for messages: `norm (LayerNorm)`; for the outermost, its class."""
    if module.name:
        return f"{module.name} ({name_class(module)})"
    return name_class(module)
