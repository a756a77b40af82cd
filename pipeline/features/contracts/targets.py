"""Targets: descriptions of devices' runtimes, in `targets/<name>.yaml`.

The gate `runs_on` checks a package against each target that it names. These files are data, parsed
like configs but without variables and without other files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from pipeline.backends import BACKENDS, Options
from pipeline.backends.options import Distinct, distinct, rule
from pipeline.config.compose import Document
from pipeline.config.features import open_to_features
from pipeline.config.fields import IDENTIFIER_PATTERN, RELEASE_PATTERN, parse_bytes
from pipeline.config.parser import parse
from pipeline.config.yaml import Dumper, load_nodes
from pipeline.features.contracts.linking import kernel_libraries, known_operators
from pipeline.features.contracts.planning import find_targets, target_file
from pipeline.program.scalar_types import SCALAR_TYPES
from pipeline.store.errors import ConfigErrors, Problem, did_you_mean
from pipeline.store.files import inside, read_text_file

HEAD = "# The runtime of ExecuTorch's wheel: `doit contract --of-runtime` writes this file anew.\n"
KERNEL_PATTERN = r"[A-Za-z_]\w*::([A-Za-z_]\w*(\.[A-Za-z_]\w*)?|\*)"
PARTS = ("segments", "constants", "payloads", "planned_memory")
_MOST_NEAR = 8


def _unknown(names: Iterable[str]) -> PydanticCustomError:
    return PydanticCustomError("unknown", "unknown", {"known": list(names)})


def _library(name: Any) -> Any:
    libraries = [library for library in kernel_libraries() if library != "prim"]
    if name not in libraries:
        raise _unknown(libraries)
    return name


def _dtype(name: Any) -> Any:
    if name not in SCALAR_TYPES.split():
        raise _unknown(SCALAR_TYPES.split())
    return name


def _backend(name: Any) -> Any:
    """Return the id of a backend, given the id or the backend's name in configs."""
    if isinstance(name, str) and name in BACKENDS:
        return BACKENDS[name].backend_id
    ids = sorted({backend.backend_id for backend in BACKENDS.values()})
    if name not in ids:
        raise _unknown([*BACKENDS, *ids])
    return name


def _kernel(value: Any) -> Any:
    """Return an operator and its dtypes, None for all, from a name or `{name: [dtype, ...]}`."""
    name = value
    dtypes = None
    if isinstance(value, dict) and len(value) == 1:
        ((name, dtypes),) = value.items()
        if not isinstance(dtypes, list) or not dtypes:
            raise rule("must name dtypes: {aten::add.out: [float32]}")
        for dtype in dtypes:
            if dtype not in SCALAR_TYPES.split():
                raise rule(
                    f"must name dtypes; {did_you_mean(str(dtype), SCALAR_TYPES.split())}"
                )
        distinct(tuple(dtypes))
    if not isinstance(name, str) or not re.fullmatch(KERNEL_PATTERN, name):
        raise rule(
            "must be an operator such as aten::add.out, or all of a namespace: team::*"
        )
    kernels = known_operators().get(name.partition("::")[0])
    if kernels and not name.endswith("::*") and name not in kernels:
        near = difflib.get_close_matches(name, sorted(kernels), _MOST_NEAR)
        raise _unknown(near or sorted(kernels)[:_MOST_NEAR])
    return name, None if dtypes is None else tuple(dtypes)


def _kernels(values: tuple[Any, ...]) -> tuple[Any, ...]:
    distinct(tuple(name for name, _ in values))
    return values


def _memory(value: Any) -> Any:
    """Return the bytes of memory by arena number, from 1, or under 0 for all arenas together."""
    if not isinstance(value, dict):
        return {"0": parse_bytes(value)}
    if not value or not all(
        re.fullmatch(r"[1-9][0-9]{0,2}", str(arena)) for arena in value
    ):
        raise rule(
            "must be a size such as 2MB, or sizes by the number of the arena: {1: 256kB}"
        )
    return {str(arena): parse_bytes(size) for arena, size in value.items()}


def _alignment(value: Any) -> Any:
    """Return the required alignments in bytes, by part of the file or memory.

    A single number applies to all data.
    """
    if isinstance(value, dict):
        alignments = value
    else:
        alignments = dict.fromkeys(PARTS[1:], value)
    for part, bytes_ in alignments.items():
        if part not in PARTS:
            raise rule(f"must be a power of two, or several by {', '.join(PARTS)}")
        if type(bytes_) is not int or bytes_ < 1 or bytes_ & (bytes_ - 1):
            raise rule("must be a power of two")
    return dict(alignments)


_KERNEL_SCHEMA: Any = {
    "anyOf": [
        {"type": "string", "pattern": rf"^{KERNEL_PATTERN}$"},
        {"type": "object", "minProperties": 1, "maxProperties": 1},
    ]
}
_MEMORY_SCHEMA = WithJsonSchema({"type": ["integer", "string", "object"]})
_ALIGNMENT_SCHEMA = WithJsonSchema({"type": ["integer", "object"]})
LibraryName = Annotated[
    str, PlainValidator(_library), WithJsonSchema({"type": "string"})
]
DtypeName = Annotated[str, PlainValidator(_dtype), WithJsonSchema({"type": "string"})]
BackendId = Annotated[str, PlainValidator(_backend), WithJsonSchema({"type": "string"})]
Kernel = Annotated[Any, PlainValidator(_kernel), WithJsonSchema(_KERNEL_SCHEMA)]


class RuntimeTarget(Options):
    """The runtime of a device, with only the operators and backends that the file names.

    Other keys are checked only if they are set.
    """

    kernels: Distinct[LibraryName] = ()
    """The ExecuTorch kernel libraries that the runtime includes in full: any of portable,
    optimized, quantized, llm and cortex_m. The operators for sizes and control flow need no entry,
    since every runtime has them."""
    operators: Annotated[
        tuple[Kernel, ...], Field(strict=False, min_length=1), AfterValidator(_kernels)
    ] = ()
    """Other operators for which the runtime has kernels, such as aten::add.out. If a kernel
    supports only some dtypes, list them: {aten::add.out: [float32]}. team::* stands for all
    operators of the namespace team."""
    dtypes: Distinct[DtypeName] | None = None
    """The dtypes that the kernels support, for operators without their own list of dtypes; by
    default, all dtypes."""
    backends: Distinct[BackendId] = ()
    """The backends whose delegates the runtime can run, by the name that configs use or by
    backend_id."""
    executorch: Annotated[str, Field(pattern=RELEASE_PATTERN)] | None = None
    """The ExecuTorch release that the runtime was built from, such as 1.4.1."""
    runtime: Annotated[str, Field(min_length=1)] | None = None
    """The name of a toolchain from the setting `toolchains`. Its runtime loads and runs the
    packages; by default, packages are only compared with the lists in this file."""
    identifier: Annotated[str, Field(pattern=IDENTIFIER_PATTERN)] | None = None
    """The identifier of the .pte files that the runtime reads, such as ET12."""
    schema_version: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The highest .pte schema version that the runtime reads; so far, 0 is the only version."""
    memory: Annotated[dict[str, int], PlainValidator(_memory), _MEMORY_SCHEMA] = Field(
        default={}
    )
    """The maximum planned memory of a method, such as 2MB; or the maximum in each of the runtime's
    memory arenas, by number, such as {1: 256kB, 2: 8MB}."""
    alignment: Annotated[
        dict[str, int], PlainValidator(_alignment), _ALIGNMENT_SCHEMA
    ] = Field(default={})
    """The alignment, in bytes, that the runtime requires for constants, payloads and planned
    memory; or separate alignments for segments, constants, payloads and planned_memory, such as
    {segments: 4096, constants: 16}."""


# The keys of a target file: the runtime's, and those that features add, such as `devices`.
TargetFile = open_to_features("target")(RuntimeTarget)


def describe_runtime(target: RuntimeTarget) -> dict[str, Any]:
    """Return the target file's description of the runtime as JSON, or {} if it has no such key."""
    if not target.model_fields_set & RuntimeTarget.model_fields.keys():
        return {}
    facts = target.resolved()
    return {name: facts[name] for name in RuntimeTarget.model_fields}


def read_target(path: Path) -> RuntimeTarget:
    """Read a target file. Raises ConfigErrors, with every mistake and its line."""
    file = f"{path.parent.name}/{path.name}"
    try:
        content = read_text_file(inside(path, (path.parent.parent,)))
    except OSError as error:
        raise ConfigErrors(
            [Problem(file, "", f"cannot be read: {error.strerror}")]
        ) from error
    root = load_nodes(content, file)
    if root is None:
        hint = "`doit contract --of-runtime` writes one"
        raise ConfigErrors([Problem(file, "", "is empty", hint)])
    return parse(TargetFile, Document(file, root))


def format_target(facts: Mapping[str, Any]) -> str:
    """Format a runtime's description as a target file, without backends that no catalogue knows."""
    ids = {backend.backend_id for backend in BACKENDS.values()}
    backends = [backend_id for backend_id in facts["backends"] if backend_id in ids]
    text: str = yaml.dump(
        {**facts, "backends": backends},
        None,
        Dumper,
        sort_keys=False,
    )
    return HEAD + text


def check_targets(root: Path) -> Iterator[Problem]:
    """Yield the mistakes in all targets of the workspace at `root`."""
    for path in find_targets(root).values():
        try:
            read_target(path)
        except ConfigErrors as errors:
            yield from errors.problems


def missing_target(name: str, targets: Iterable[str]) -> tuple[str, str]:
    """Return the fault and the remedy for the name of a target that has no file."""
    fault = f"no target '{name}': there is no {target_file(name)}"
    return fault, did_you_mean(name, targets)
