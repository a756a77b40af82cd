"""Baselines: the figures of a package that somebody accepted, in `baselines/<package>.yaml`.

A baseline is text for version control: small, sorted, and the same for the same package whoever
accepted it. Later builds are held to it by gates, and compared with it by `doit diff`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

from pydantic import Field

from pipeline.backends.options import Options
from pipeline.config.compose import Document
from pipeline.config.fields import DIGEST_PATTERN
from pipeline.config.parser import Parser
from pipeline.config.yaml import key_text, load_nodes
from pipeline.store.errors import ConfigErrors, Problem
from pipeline.store.workspace import BASELINES, Workspace
from pipeline.validate.gates.figures import Figures, MethodFigures, largest

MOST_TENSORS = 10
# Of the same bytes, figures of numerics that are this near are one, measured on two machines.
_NEAR_SQNR = 3.0  # dB
_NEAR_ABS = 2.0  # times
_COMMENT = """\
# What was accepted of {package}: the figures that `max_size_growth`, `max_delegation_drop` and
# `max_sqnr_drop` hold later builds to. `doit baseline {package}` writes the present ones here, and
# `doit diff {package}` tells how they differ. Sizes in bytes; of the tensors the largest.
"""

Count = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Tensor(Options):
    dtype: str
    shape: list[int]
    size: Count


class _Method(Options):
    nodes: Count
    delegated_nodes: Count
    operators: Count
    delegated_operators: Count
    partitions: dict[str, Count] = Field(default={})
    left: dict[str, Count] = Field(default={})
    planned_memory: Count | None = None
    constants: Count | None = None
    delegated: Count | None = None
    sqnr_db: list[Finite | None] | None = None
    max_abs: Finite | None = None


class _Baseline(Options):
    digest: Annotated[str, Field(pattern=DIGEST_PATTERN)]
    size: Annotated[int, Field(ge=1)]
    segments: dict[str, Count] = Field(default={})
    tensors: dict[str, _Tensor] = Field(default={})
    methods: dict[str, _Method]


def parse_baseline(content: bytes, file: str) -> Figures:
    """The figures of a baseline. Raises ConfigErrors, with all that is wrong, by line."""
    root = load_nodes(content, file)
    if root is None:
        raise ConfigErrors([Problem(file, "", "is empty", "`doit baseline` makes it")])
    document = Document(file, root)
    parser = Parser(document.problem)
    found = parser.section(_Baseline, document.data, "")
    if parser.problems or found is None:
        raise ConfigErrors(parser.problems)
    return cast(Figures, found.resolved())


def baseline_text(package: str, figures: Figures) -> str:
    """The file. Equal figures give equal text."""
    return _COMMENT.format(package=package) + "".join(f"{line}\n" for line in _lines(figures))


def _lines(figures: Figures) -> Iterator[str]:
    yield f"digest: {figures['digest']}"
    yield f"size: {figures['size']}"
    yield from _block("segments", figures["segments"], "")
    yield "methods:" + ("" if figures["methods"] else " {}")
    for name, method in sorted(figures["methods"].items()):
        yield f"  {key_text(name)}:"
        for key in MethodFigures.__annotations__:
            yield from _block(key, cast(Mapping[str, Any], method)[key], "    ")
    tensors = largest(figures["tensors"], MOST_TENSORS)
    yield from _block("tensors", {name: dict(tensor) for name, tensor in tensors.items()}, "")


def _block(key: str, value: Any, indent: str) -> Iterator[str]:
    """A member, in lines of its own if it is a mapping; nothing of what is not known."""
    if isinstance(value, Mapping):
        if value:
            yield f"{indent}{key}:"
        for name, each in sorted(value.items()):
            yield f"{indent}  {key_text(name)}: {_flow(each)}"
    elif value is not None:
        yield f"{indent}{key}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key_text(k)}: {_flow(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if value is None:
        return "null"
    return key_text(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def settled(now: Figures, before: Figures | None) -> Figures:
    """The figures to write where a baseline is there already: of the same package, what was
    measured elsewhere stays as it was written, unless it is another result."""
    if before is None or before["digest"] != now["digest"]:
        return now
    methods = {
        name: _settled(each, before["methods"].get(name)) for name, each in now["methods"].items()
    }
    return {**now, "methods": methods}


def _settled(now: MethodFigures, before: MethodFigures | None) -> MethodFigures:
    here, there = now["sqnr_db"], before["sqnr_db"] if before else None
    if before is None or here is None or there is None or len(here) != len(there):
        return now
    if not all(_near(a, b) for a, b in zip(here, there, strict=True)):
        return now
    ours, theirs = now["max_abs"], before["max_abs"]
    same = ours is None or theirs is None or max(ours, theirs) <= _NEAR_ABS * min(ours, theirs)
    return {**now, "sqnr_db": there, "max_abs": theirs if same else ours}


def _near(a: float | None, b: float | None) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= _NEAR_SQNR


def read_baseline(workspace: Workspace, package: str) -> Figures | None:
    """None where there is none. Raises ConfigErrors."""
    path = workspace.baseline(package)
    file = f"{BASELINES}/{path.name}"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigErrors([Problem(file, "", f"cannot be read: {error.strerror}")]) from error
    return parse_baseline(content, file)
