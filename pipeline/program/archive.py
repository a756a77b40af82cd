"""Reads and writes ExportedPrograms as PT2 archives, one method at a time, without pickle.

torch's own `load_pt2` reads every method of an archive with all weights, and unpickles sample
inputs; a worker needs one method. Here torch receives only the JSON that `archive_reader` checked,
and tensors that this module read. Source: `torch/export/pt2_archive/_package.py` of torch 2.13.
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

from pipeline.program.archive_operators import OTHER_OPERATORS
from pipeline.program.archive_reader import (
    KINDS,
    ArchiveReader,
    open_archive,
    shown,
    sizes_file,
    tags_file,
)
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
from pipeline.program.replaced_sizes import read_replaced_sizes, write_replaced_sizes
from pipeline.program.tensor_file import load_storage, load_tensor_file, map_storage
from pipeline.program.torch_serde import (
    forget_derived_sizes,
    patched_reader,
    patched_writer,
    read_document,
    unwrap_subclasses,
)
from pipeline.program.training import name_input_gradients
from pipeline.store.errors import SourceError

_MOST_CHARACTERS = 300  # of one of torch's errors
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodType)
# In torch's errors, this starts a remedy that doesn't help when reading archives.
_TORCH_REMEDY = ". Please use"


def load_program(
    archive: Path, entry: str, *, without_pickle: bool = False, mapped: bool = False
) -> ExportedProgram:
    """Load the program of one entry, without example inputs.

    Args:
        without_pickle: whether to refuse pickled tensors, because `save_programs` wrote the
            archive.
        mapped: whether to map large weights instead of reading them, so that only the pages in
            use take memory. The caller must have checked the file, and must keep it unchanged
            while the program is in use.

    Raises:
        SourceError: the archive can't be read, or holds no valid program of this name.
    """
    with open_archive(archive) as reader:
        document = reader.program(entry)
        _register_operators(document, entry)
        # Guards are Python code that torch runs before each call; a package has no such checks.
        document["guards_code"] = []
        tensors = {
            kind: _load_tensors(reader, kind, entry, without_pickle, mapped)
            for kind in KINDS
        }
        try:
            serialized = read_document(document)
            with patched_reader():
                program = ExportedProgramDeserializer().deserialize(
                    serialized, tensors["weights"], tensors["constants"]
                )
            _check_operators(program)
            forget_derived_sizes(program)
            program = unwrap_subclasses(program)
            write_tags(program, reader.tags(entry))
            write_replaced_sizes(program, reader.replaced_sizes(entry))
            return program
        except Exception as error:  # torch raises what its readers happen to raise
            raise SourceError(
                f"{shown(archive)}: {_explain(entry, document, error)}"
            ) from error


def _register_operators(document: Any, entry: str) -> None:
    """Register the operators that a program calls. Raises ValueError if one can't be found."""
    register_for_lowering()
    missing = register_operators(find_operators(document))
    for name, reason in missing.items():
        shown_name = name[:_MOST_CHARACTERS]
        message = f"'{entry}' calls the operator {shown_name}, which no imported library registers"
        if reason:
            raise ValueError(f"{message}: {reason}")
        library = likely_library(name)
        remedy = f"{library} does; {REMEDY}" if library else REMEDY
        raise ValueError(f"{message}; {remedy}")


def _load_tensors(
    reader: ArchiveReader, kind: str, entry: str, without_pickle: bool, mapped: bool
) -> dict[str, torch.Tensor]:
    """Return the weights or constants by name. Tensors stored in one member share its memory."""
    read_storage = map_storage if mapped else load_storage
    storages: dict[str, torch.UntypedStorage] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, record in reader.payloads(kind, entry).items():
        member = f"data/{kind}/{record['path_name']}"
        if record["use_pickle"]:
            if without_pickle:
                raise ValueError(
                    f"'{entry}': tensor '{name}' is pickled, but builds pickle nothing"
                )
            tensors[name] = _load_subclass(
                reader,
                member,
                f"'{entry}': tensor '{name}'",
            )
            continue
        if member not in storages:
            storages[member] = read_storage(reader.members, member)
        meta = record["tensor_meta"]
        tensor = _view_storage(storages[member], meta)
        if kind == "weights" and record["is_param"]:
            tensors[name] = torch.nn.Parameter(tensor, meta["requires_grad"])
        else:
            tensors[name] = tensor.requires_grad_(meta["requires_grad"])
    return tensors


def _view_storage(
    storage: torch.UntypedStorage, meta: Mapping[str, Any]
) -> torch.Tensor:
    """Return the tensor that a record (`TensorMeta`) describes, as a view of the storage."""
    offset = meta["storage_offset"]["as_int"]
    sizes = [size["as_int"] for size in meta["sizes"]]
    strides = [stride["as_int"] for stride in meta["strides"]]
    tensor = torch.empty(0, dtype=_SERIALIZE_TO_TORCH_DTYPE[meta["dtype"]])
    tensor.set_(storage, offset, sizes, strides)
    return tensor


def _load_subclass(reader: ArchiveReader, member: str, label: str) -> torch.Tensor:
    """Load a tensor subclass defined by a library, such as torchao's quantized weights.

    Raises ValueError for any other object.
    """
    try:
        tensor = _load_pickled(reader, member)
    except ValueError as error:
        raise ValueError(
            f"{label} is stored pickled, and can't be read ({error}); export plain tensors"
        ) from error
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{label} is stored pickled, and no tensor")
    return tensor


def _load_pickled(reader: ArchiveReader, member: str) -> Any:
    """Load what torch pickled. Raises ValueError with nothing but the reason."""
    data = io.BytesIO(reader.members.read(member, reader.members.size(member)))
    try:
        return load_tensor_file(data)
    except (ValueError, pickle.UnpicklingError) as error:
        raise ValueError(str(error).partition(_TORCH_REMEDY)[0]) from error


def load_example_inputs(
    archive: Path, entry: str
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the (args, kwargs) that the entry was exported with, or None if none are stored."""
    name = f"data/sample_inputs/{entry}.pt"
    with open_archive(archive) as reader:
        if not (reader.members.has(name) and reader.members.size(name)):
            return None
        try:
            return _load_pickled(reader, name) or None
        except ValueError as error:
            raise SourceError(
                f"{shown(archive)}: example inputs of '{entry}' cannot be read ({error}); they "
                "may contain tensors, numbers, lists, tuples and dicts; save the program "
                "without them, and name files in `examples` of `validate`"
            ) from error


def _check_operators(program: ExportedProgram) -> None:
    """Raise ValueError if a node calls or holds a function that isn't an allowed operator."""
    for node in iter_nodes(program):
        values = pytree.tree_leaves((node.args, node.kwargs))
        if node.op == "call_function":
            values = [node.target, *values]
        for value in values:
            if isinstance(value, _FUNCTIONS):
                name = f"{value.__module__}.{value.__name__}"
                if name not in OTHER_OPERATORS:
                    raise ValueError(
                        f"'{node.name}' calls '{name}', which is not an operator"
                    )


def save_programs(programs: Mapping[str, ExportedProgram], file: Any) -> None:
    """Write an archive of the programs, in their order, to a file-like object or a path.

    Each program is taken from `programs.items()` only after the previous one has been written, and
    is released once it is written. Example inputs are left out: `package_pt2` would pickle them,
    and an exporter stores them separately. Constant tags and replaced sizes, which `package_pt2`
    drops, are kept.

    Raises:
        SourceError: a tag isn't a plain file name.
    """
    extra_files: dict[str, str] = {}  # filled by the copies; torch writes them last
    copies = _Stream()
    copies.items = lambda: _copy_programs(programs, extra_files)  # type: ignore
    with patched_writer(), _without_file_warning():
        _package.package_pt2(file, exported_programs=copies, extra_files=extra_files)


class _Stream(dict[str, ExportedProgram]):
    """A lazy stand-in for the dict that torch's writer expects: it calls only `items`, once."""


def _copy_programs(
    programs: Mapping[str, ExportedProgram], extra_files: dict[str, str]
) -> Iterator[tuple[str, ExportedProgram]]:
    """Yield a copy of each program for torch's writer, and drop its weights once it is written.

    The writer keeps a reference to the last copy.
    """
    for name, program in programs.items():
        unwrapped = unwrap_subclasses(program)
        tags_by_name = read_tags(name, unwrapped)
        if tags_by_name:
            extra_files[tags_file(name)] = json.dumps(tags_by_name)
        sizes = read_replaced_sizes(unwrapped)
        if sizes:
            extra_files[sizes_file(name)] = json.dumps(sizes)
        copy = unwrapped._update(
            unwrapped.graph_module, name_input_gradients(unwrapped)
        )
        _make_writable(copy)
        del program, unwrapped
        yield name, copy
        copy._state_dict = copy._constants = {}


def _make_writable(program: ExportedProgram) -> None:
    """Drop or convert the parts of a program that torch's writer would pickle or refuse."""
    program._example_inputs = None
    for call in program.module_call_graph:
        if call.signature is not None:
            call.signature.in_spec = make_serializable(call.signature.in_spec)
            call.signature.out_spec = make_serializable(call.signature.out_spec)


@contextmanager
def _without_file_warning() -> Iterator[None]:
    """Suppress the warning about files that can't seek, since torch writes without seeking."""

    def is_other_message(record: LogRecord) -> bool:
        return not str(record.msg).startswith("Expect archive file to be")

    _package.logger.addFilter(is_other_message)
    try:
        yield
    finally:
        _package.logger.removeFilter(is_other_message)


def _explain(entry: str, program: Mapping[str, Any], error: BaseException) -> str:
    """Explain in one line why an entry failed to load: a newer torch's schema, or damage."""
    version = program["schema_version"]
    schema = (version["major"], version["minor"])
    schema_here = tuple(SCHEMA_VERSION[:2])
    writer = ascii(program.get("torch_version") or "an unknown version")[1:-1]
    if schema > schema_here:
        return (
            f"'{entry}' was written by torch {writer} (schema {schema[0]}.{schema[1]}), and this "
            f"is torch {torch.__version__} (schema {schema_here[0]}.{schema_here[1]}); export it "
            "again with this torch"
        )
    while error.__cause__ is not None:  # torch wraps it in the text of a whole node
        error = error.__cause__
    first_line = str(error).strip().split("\n")[0]
    reason = ascii(first_line)[1:-1][:_MOST_CHARACTERS]
    return (
        f"'{entry}', written by torch {writer}, cannot be read "
        f"({type(error).__name__}: {reason})"
    )
