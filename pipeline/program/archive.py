"""Reads and writes ExportedPrograms as PT2 archives, one method at a time, without pickle.

torch's own `load_pt2` reads every method of an archive with all weights, and unpickles sample
inputs; a worker needs one method. torch is given what `archive_reader` checked, and tensors that
were read here. Source: `torch/export/pt2_archive/_package.py` of torch 2.13.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import LogRecord
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch._export.serde.serialize import (
    _SERIALIZE_TO_TORCH_DTYPE,
    SCHEMA_VERSION,
    ExportedProgramDeserializer,
)
from torch.export import ExportedProgram
from torch.export.pt2_archive import _package
from torch.utils import _pytree as pytree

from pipeline.program.archive_grammar import OTHER_OPERATORS
from pipeline.program.archive_reader import KINDS, ArchiveReader, open_archive, shown, tags_file
from pipeline.program.constant_tags import read_tags, write_tags
from pipeline.program.containers import make_serializable
from pipeline.program.graphs import iter_nodes
from pipeline.program.operator_libraries import (
    REMEDY,
    find_operators,
    likely_library,
    register_for_lowering,
    register_operators,
)
from pipeline.program.tensor_file import load_storage, load_tensor_file, map_storage
from pipeline.program.torch_serde import (
    forget_derived_sizes,
    mended_reader,
    mended_writer,
    read_document,
    unwrap_subclasses,
)
from pipeline.program.training import name_input_gradients
from pipeline.store.errors import SourceError

_LONGEST = 300  # characters of what torch says of an error
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodType)


def load_program(
    archive: Path, entry: str, *, own: bool = False, mapped: bool = False
) -> ExportedProgram:
    """Load the program of one entry, without example inputs.

    Args:
        own: whether `save_programs` wrote the archive, which then holds nothing pickled.
        mapped: whether large weights are mapped and not read, so that they are memory of this
            process only as far as they are looked at. The caller has checked the file, and sees to
            it that nobody has changed it once the program is no longer used.

    Raises SourceError.
    """
    with open_archive(archive) as reader:
        document = reader.program(entry)
        _register_operators(document, entry)
        # They are Python that torch runs before each call; a package has no such checks.
        document["guards_code"] = []
        tensors = {kind: _load_tensors(reader, kind, entry, own, mapped) for kind in KINDS}
        try:
            serialized = read_document(document)
            with mended_reader():
                program = ExportedProgramDeserializer().deserialize(
                    serialized, tensors["weights"], tensors["constants"]
                )
            _check_operators(program)
            forget_derived_sizes(program)
            program = unwrap_subclasses(program)
            write_tags(program, reader.tags(entry))
            return program
        except Exception as error:  # torch raises what its readers happen to raise
            raise SourceError(f"{shown(archive)}: {_explain(entry, document, error)}") from error


def _register_operators(document: Any, entry: str) -> None:
    """Register the operators that a program calls. Raises ValueError where nothing does."""
    register_for_lowering()
    for name, why in register_operators(find_operators(document)).items():
        what = f"'{entry}' calls the operator {name[:_LONGEST]}, which nothing here registers"
        library = likely_library(name)
        remedy = f"{library} does; {REMEDY}" if library else REMEDY
        raise ValueError(f"{what}: {why}" if why else f"{what}; {remedy}")


def _load_tensors(
    reader: ArchiveReader, kind: str, entry: str, own: bool, mapped: bool
) -> dict[str, torch.Tensor]:
    """Load weights or constants by name. Those of one member share its memory."""
    storages: dict[str, torch.UntypedStorage] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, record in reader.payloads(kind, entry).items():
        member, meta = f"data/{kind}/{record['path_name']}", record["tensor_meta"]
        if record["use_pickle"]:
            if own:
                raise ValueError(f"'{entry}': tensor '{name}' is pickled, which no build does")
            tensors[name] = _load_subclass(reader, member, f"'{entry}': tensor '{name}'")
            continue
        if member not in storages:
            storages[member] = (map_storage if mapped else load_storage)(reader.members, member)
        sizes, strides = ([each["as_int"] for each in meta[key]] for key in ("sizes", "strides"))
        tensor = torch.empty(0, dtype=_SERIALIZE_TO_TORCH_DTYPE[meta["dtype"]])
        tensor.set_(storages[member], meta["storage_offset"]["as_int"], sizes, strides)
        is_weight = kind == "weights" and record["is_param"]
        tensors[name] = (
            torch.nn.Parameter(tensor, meta["requires_grad"])
            if is_weight
            else tensor.requires_grad_(meta["requires_grad"])
        )
    return tensors


def _load_subclass(reader: ArchiveReader, member: str, what: str) -> torch.Tensor:
    """Load a tensor subclass of a library, as torchao's quantized weights are. Raises ValueError
    for any other object."""
    data = io.BytesIO(reader.members.read(member, reader.members.size(member)))
    try:
        tensor = load_tensor_file(data)
    except (ValueError, pickle.UnpicklingError) as error:
        why = str(error).partition(". Please use")[0]
        what += f" is stored pickled, and can't be read ({why}); export plain tensors"
        raise ValueError(what) from error
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{what} is stored pickled, and no tensor")
    return tensor


def load_example_inputs(archive: Path, entry: str) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Load the (args, kwargs) that the archive was exported with, None where it holds none."""
    name = f"data/sample_inputs/{entry}.pt"
    with open_archive(archive) as reader:
        if not reader.members.has(name) or not (size := reader.members.size(name)):
            return None
        data = io.BytesIO(reader.members.read(name, size))
        try:
            return load_tensor_file(data) or None
        except (ValueError, pickle.UnpicklingError) as error:
            what = str(error).partition(". Please use")[0]  # torch's remedy is none here
            raise SourceError(
                f"{shown(archive)}: example inputs of '{entry}' cannot be read ({what}); they may "
                "hold tensors, numbers, lists, tuples and dicts; save the program without them, "
                "and name files in `examples` of `validate`"
            ) from error


def _check_operators(program: ExportedProgram) -> None:
    """Raises ValueError where the name of an operator led to another attribute of torch.ops."""
    for node in iter_nodes(program):
        values = pytree.tree_leaves((node.args, node.kwargs))
        for value in [node.target, *values] if node.op == "call_function" else values:
            if isinstance(value, _FUNCTIONS):
                name = f"{value.__module__}.{value.__name__}"
                if name not in OTHER_OPERATORS:
                    raise ValueError(f"'{node.name}' calls '{name}', which is no operator")


def save_programs(programs: Mapping[str, ExportedProgram], file: Any) -> None:
    """Write an archive of the programs, in their order, to a file-like object or a path.

    Example inputs are left out: `package_pt2` pickles them, and an exporter gives its own. Tags of
    constants, which it leaves out, are kept. Raises SourceError for a tag that names no file.
    """
    plain = {name: unwrap_subclasses(program) for name, program in programs.items()}
    tags = {tags_file(name): read_tags(name, program) for name, program in plain.items()}
    copies = {n: p._update(p.graph_module, name_input_gradients(p)) for n, p in plain.items()}
    for program in copies.values():
        program._example_inputs = None
        for called in program.module_call_graph:
            if (own := called.signature) is not None:
                own.in_spec = make_serializable(own.in_spec)
                own.out_spec = make_serializable(own.out_spec)
    extra = {name: json.dumps(own) for name, own in tags.items() if own}
    with mended_writer(), _written_in_pieces():
        _package.package_pt2(file, exported_programs=copies, extra_files=extra)


@contextmanager
def _written_in_pieces() -> Iterator[None]:
    """Without torch's warning of a file that can't be read back, which it never does."""

    def is_other(record: LogRecord) -> bool:
        return not str(record.msg).startswith("Expect archive file to be")

    _package.logger.addFilter(is_other)
    try:
        yield
    finally:
        _package.logger.removeFilter(is_other)


def _explain(entry: str, program: Mapping[str, Any], error: BaseException) -> str:
    """Explain a failed load in a line: an archive of another torch, or a damaged one."""
    written, own = program["schema_version"], tuple(SCHEMA_VERSION[:2])
    version = (written["major"], written["minor"])
    by = ascii(program.get("torch_version") or "an unknown version")[1:-1]
    if version > own:
        return (
            f"'{entry}' was written by torch {by} (schema {version[0]}.{version[1]}), and this is "
            f"torch {torch.__version__} (schema {own[0]}.{own[1]}); export it again with this torch"
        )
    while error.__cause__ is not None:  # torch wraps it in the text of a whole node
        error = error.__cause__
    what = ascii(str(error).strip().split("\n")[0])[1:-1][:_LONGEST]
    return f"'{entry}', written by torch {by}, cannot be read ({type(error).__name__}: {what})"
