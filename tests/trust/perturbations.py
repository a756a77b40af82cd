"""Generates states of a workspace in which one input differs: see prover.py."""

from __future__ import annotations

import ast
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

from pipeline.backends import BACKENDS, QUANTIZERS
from pipeline.config.models import PackageConfig
from pipeline.store.errors import PipelineError
from pipeline.store.toolchain import CORE
from tests.support.configs import parse_config

# Kinds that must not affect a build: the bytes stay the same, and nothing is done again.
HARMLESS = ("clock", "folder", "order", "process", "stamps", "workers")


@dataclass(frozen=True)
class State:
    """A workspace and its surroundings.

    Attributes:
        kind: the kind of input that differs; `what` names it, and the change.
        files: all files of the workspace, keyed by path in it.
        environment: the variables that are set.
        done: what to do to the process or the files before the build, as a name in `prover.DONE`.
        tasks: what to build; everything if empty.
    """

    kind: str
    what: str
    files: Mapping[str, bytes]
    environment: Mapping[str, str] = field(default_factory=dict)
    done: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


def read_workspace(root: Path) -> State:
    """Return the state of a workspace, with timing turned off in its configs, since times vary."""
    tops = ("models", "passes", "inputs", "partition_configs", "baselines", "dodo.py")
    paths = [root / top for top in (*tops, "pyproject.toml")]
    paths += [path for top in paths for path in sorted(top.rglob("*"))]
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }
    for path, data in files.items():
        if path.startswith("partition_configs/") and path.endswith(".yaml"):
            document = yaml.safe_load(data)
            if "latency" not in (document.get("validate") or {}):
                untimed = _with(document, ("validate", "latency", "seconds"), 0)
                files[path] = yaml.safe_dump(untimed, sort_keys=False).encode()
    return State("base", "", files)


def perturb(base: State, variables: Mapping[str, str] | None = None) -> Iterator[State]:
    """Yield a state for each input and each way to perturb it.

    `variables` are environment variables that the build was seen to read, with values.
    """
    yield from _contents(base)
    yield from _config_fields(base)
    yield from _names(base)
    yield from _environment(base, variables or {})
    for name in CORE:
        yield replace(base, kind="version", what=name, done=(f"version {name}",))
    for kind, done in {
        "clock": ("later", "earlier"),
        "stamps": ("touched", "copied"),
        "process": ("umask", "seeds"),
        "order": ("reversed",),
        "folder": ("moved",),
        "cache": ("no results", "no blobs", "no build", "no stamps", "no state"),
    }.items():
        for each in done:
            yield replace(base, kind=kind, what=each, done=(each,))
    yield replace(base, kind="workers", what="jobs", environment={"PTE_PIPELINE_JOBS": "1"})


def _edit(base: State, kind: str, what: str, changes: Mapping[str, bytes | None]) -> State:
    files = {path: data for path, data in {**base.files, **changes}.items() if data is not None}
    return replace(base, kind=kind, what=what, files=files)


def _contents(base: State) -> Iterator[State]:
    """Yield states in which the content of a file changes."""
    for path, data in base.files.items():
        suffix = Path(path).suffix
        edits = {
            ".py": _edit_python, ".yaml": _edit_yaml, ".toml": _edit_text, ".json": _edit_json,
        }.get(suffix, _edit_binary)  # fmt: skip
        for what, changed in edits(data):
            yield _edit(
                base, suffix.removeprefix(".") or "file", f"{path}: {what}", {path: changed}
            )


def _edit_python(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "a line above", b"# moved\n" + data
    lines = data.decode().splitlines(keepends=True)
    for node in ast.walk(ast.parse(data)):
        if not isinstance(node, ast.Constant) or node.lineno != node.end_lineno:
            continue
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        new = repr(value + "x" if isinstance(value, str) else value + 1)
        line = lines[node.lineno - 1].encode()
        line = line[: node.col_offset] + new.encode() + line[node.end_col_offset :]
        before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.lineno :])
        yield f"{node.lineno}: {value!r} -> {new}", before.encode() + line + after.encode()


def _edit_text(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "a comment", data + b"# a comment\n"


def _edit_yaml(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "a comment above", b"# a comment\n" + data
    yield "other quotes, no anchors", yaml.safe_dump(yaml.safe_load(data), sort_keys=False).encode()
    yield "keys sorted", yaml.safe_dump(yaml.safe_load(data), sort_keys=True).encode()


def _edit_json(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "spaces", data + b" \n"
    for name, value in json.loads(data).items():
        yield f"{name} + 1", json.dumps({**json.loads(data), name: value + 1}).encode()


def _edit_binary(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Flip a bit in the last numbers of each member of an archive, or of the file."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        yield "a bit", data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {each.filename: archive.read(each) for each in archive.infolist()}
    for name, member in members.items():
        if len(member) > 4:
            changed = member[:-2] + bytes([member[-2] ^ 1]) + member[-1:]
            yield f"a bit of {name}", _pack({**members, name: changed})
    yield "packed again", _pack(members)


def _pack(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member)
    return buffer.getvalue()


def _names(base: State) -> Iterator[State]:
    """Yield states in which a file appears, disappears, or changes its name."""
    for path, data in base.files.items():
        yield _edit(base, "gone", path, {path: None})
        if Path(path).parts[0] in ("models", "partition_configs"):
            other = Path(path).with_stem(Path(path).stem + "2").as_posix()
            yield _edit(base, "renamed", f"{path} -> {other}", {path: None, other: data})
    folders = {Path(path).parent.as_posix() for path in base.files} | {"models/sub", "data"}
    for folder in sorted(folders):
        for name in ("json.py", "torch.json", ".hidden", "shift.txt", "shard-1", "conftest.py"):
            path = (Path(folder) / name).as_posix()
            yield _edit(base, "new", path, {path: b"value = 1\n"})


def _environment(base: State, variables: Mapping[str, str]) -> Iterator[State]:
    for name, value in variables.items():
        yield replace(base, kind="environment", what=f"{name}={value}", environment={name: value})


# Config fields


def _config_fields(base: State) -> Iterator[State]:
    """Yield, for each field of each config, other values that the config model accepts."""
    for path, data in base.files.items():
        if Path(path).parent.name != "partition_configs":
            continue
        package, document = Path(path).stem, yaml.safe_load(data)
        for place, value in _variants(package, document):
            text = yaml.safe_dump(_with(document, place, value), sort_keys=False)
            changed = _edit(base, "field", f"{package}: {'.'.join(place)}: {value!r}", {})
            files = {**base.files, path: text.encode()}
            yield replace(changed, files=files, tasks=(f"lower:{package}", f"validate:{package}"))


def _variants(package: str, document: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield places in a config with values: the default written out, and two other values."""
    original = _parsed(package, document)
    for place, annotation in _fields(document, original):
        if "latency" in place or place[-1] == "max_latency_ratio":
            continue  # measurements differ from build to build
        kept: list[Any] = []
        for value in _candidates(annotation):
            parsed = _parsed(package, _with(document, place, value))
            if parsed is not None and len(kept) < 3 and parsed not in kept:
                kept.append(parsed)
                yield place, value


def _parsed(package: str, document: Any) -> PackageConfig | None:
    try:
        return parse_config(package, document, f"{package}.yaml")
    except PipelineError:
        return None


def _with(document: Any, place: tuple[str, ...], value: Any) -> Any:
    if not place:
        return value
    name, *rest = place
    if isinstance(document, list):
        copied = list(document)
        copied[int(name)] = _with(document[int(name)], tuple(rest), value)
        return copied
    inner = document.get(name) if isinstance(document, dict) else None
    return {**(document or {}), name: _with(inner, tuple(rest), value)}


def _fields(document: Any, config: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, info in PackageConfig.model_fields.items():
        if name not in ("package", "model", "methods", "emit", "validation"):
            yield (name,), info.annotation
    yield from _model_fields(type(config.emit), ("emit",))
    yield from _model_fields(type(config.validation), ("validate",))
    limits = get_args(type(config.validation).model_fields["methods"].annotation)[1]
    for method, spec in config.methods.items():
        yield from _model_fields(limits, ("validate", "methods", method))
        yield from _model_fields(type(spec.edge), ("methods", method, "edge"))
        yield ("methods", method, "modules"), type(spec).model_fields["modules"].annotation
        if spec.quantize is not None:
            kind = QUANTIZERS[spec.quantize.quantizer].options
            yield from _model_fields(kind, ("methods", method, "quantize"))
        for number, each in enumerate(document["methods"][method]["partitioners"]):
            name = each if isinstance(each, str) else next(iter(each))
            at = ("methods", method, "partitioners", str(number))
            for option, info in BACKENDS[name].options.model_fields.items():
                yield at, {name: (option, info.annotation)}


def _model_fields(model: type[BaseModel], at: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    for name, info in model.model_fields.items():
        inner = next((each for each in _parts(info.annotation) if _is_model(each)), None)
        if inner is not None:
            yield from _model_fields(inner, (*at, name))
        else:
            yield (*at, name), info.annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types that a value can have, without unions and annotations."""
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _parts(each)
    elif hasattr(annotation, "__metadata__"):
        yield from _parts(annotation.__origin__)
    else:
        yield annotation


_ANY = (
    True, False, 0, 1, 2, 16, 128, 0.0, 0.5, 1.5, -1, "x", "50%", "1KB", "100MB", [], ["x"], {},
    ["aten.add.Tensor"], ["zeros"], [["add", "take"]], [["run"]], {"x": ["*"]}, {"x": 1},
)  # fmt: skip


def _candidates(annotation: Any) -> Iterator[Any]:
    if isinstance(annotation, dict):  # an option of a partitioner
        ((name, (option, inner)),) = annotation.items()
        for value in _candidates(inner):
            yield {name: {option: value}}
        return
    for each in _parts(annotation):
        if get_origin(each) is Literal:
            yield from get_args(each)
    yield from _ANY
