"""Objects: methods that are compiled but not linked, like the object files of a C compiler.

An object is ExecuTorch's emitted Program without its data: the flatbuffer of its execution plans,
and the digests of the constants, payloads and named data that the plans refer to by index. The
store holds the data once for all methods and packages that share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, replace
from typing import Any

from executorch.exir import ExecutorchProgramManager
from executorch.exir._serialize._flatbuffer_program import (
    _flatbuffer_to_program,
    _program_to_flatbuffer,
)
from executorch.exir._serialize._named_data_store import (
    NamedDataStore,
    NamedDataStoreOutput,
)
from executorch.exir.emit import EmitterOutput
from executorch.exir.schema import Program, Tensor, TensorDataLocation
from executorch.exir.tensor import ALIGNMENT
from executorch.exir.tensor_layout import TensorLayout
from pydantic import TypeAdapter

from pipeline.store.compiled import Blob as Blob
from pipeline.store.compiled import MethodObject as MethodObject
from pipeline.store.compiled import NamedBlob as NamedBlob
from pipeline.store.compiled import TaggedBlob as TaggedBlob
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store


class BlobBytes(bytes):
    """A stand-in for the bytes of a blob while ExecuTorch collects data and lays out a file.

    ExecuTorch then needs the length of a buffer and whether two buffers are equal, but never their
    content. Slices and hashes are taken from the digest, so deduplication (`NamedDataStore`)
    compares digests. This can go when `Cord` accepts buffers that are read late.
    """

    blob: Blob

    def __new__(cls, blob: Blob) -> BlobBytes:
        self = super().__new__(cls, bytes.fromhex(blob.digest))
        self.blob = blob
        return self

    def __len__(self) -> int:
        return self.blob.size

    def __deepcopy__(self, memo: object) -> BlobBytes:
        return self


_OBJECT = TypeAdapter(MethodObject)
# A few programs that `program_to_bytes` has read back, for linking, which takes and changes them.
_reread: dict[bytes, Program] = {}


def parse_object(record: Mapping[str, Any]) -> MethodObject:
    """Return the object for a record that `to_json` made and that went through JSON."""
    return _OBJECT.validate_python(record)


def make_object(
    manager: ExecutorchProgramManager,
    store: Store,
    named_data: Mapping[str, NamedDataStoreOutput] | None = None,
) -> MethodObject:
    """Commit every part of an emitted program to the store, and return its object.

    Args:
        named_data: the named data of each method, for a unit of several methods.

    Raises:
        PipelineError: two tags name the same `.ptd` file, a named buffer has a constant's index, or
            ExecuTorch doesn't read the same program back.
    """
    output = manager._emitter_output
    _check_named_mutable_buffers(output)
    data = manager._named_data or NamedDataStoreOutput([], {}, {})
    check_file_names((*(output.external_constant_map or ()), *data.external_data))
    # Every part is committed before the object that refers to it.
    tagged = put_named_data(store, data)
    return MethodObject(
        program=put_blob(store, program_to_bytes(output.program)),
        constants=tuple(
            put_blob(store, b.storage) for b in output.program.constant_buffer
        ),
        mutable=tuple(put_blob(store, b.storage) for b in output.mutable_data or ()),
        delegates=tuple(
            put_blob(store, d.data) for d in output.program.backend_delegate_data
        ),
        external_constants=tuple(
            put_blob(store, b) for b in output.external_constant_buffer
        ),
        external={
            t: tuple(v.items()) for t, v in (output.external_constant_map or {}).items()
        },
        named=tuple(entry for tag, entry in tagged if tag is None),
        named_external={
            t: tuple(entry for tag, entry in tagged if tag == t)
            for t in data.external_data
        },
        keys={
            method: (
                *method_data.pte_data,
                *(key for v in method_data.external_data.values() for key in v),
            )
            for method, method_data in (named_data or {}).items()
        },
    )


def check_file_names(tags: Iterable[str]) -> None:
    """Raise PipelineError if two different tags name the same `.ptd` file.

    A tag is the name of a file, with or without the ending; case is ignored.
    """
    tags_by_file: dict[str, str] = {}
    for tag in tags:
        first_tag = tags_by_file.setdefault(tag.removesuffix(".ptd").casefold(), tag)
        if first_tag != tag:
            fault = "name the same .ptd file, ignoring case"
            raise PipelineError(
                f"'{first_tag}' and '{tag}' {fault}; give them the same name, or different ones"
            )


def put_blob(store: Store, data: bytes) -> Blob:
    """Commit bytes to the store, unless they stand in for a blob, and return their blob."""
    if isinstance(data, BlobBytes):
        return data.blob
    return Blob(store.put(data), len(data))


def put_named_data(store: Store, data: NamedDataStoreOutput) -> list[TaggedBlob]:
    """Commit the buffers of named data to the store, and return the entries."""
    blobs = [put_blob(store, buffer) for buffer in data.buffers]
    tagged_blobs = []
    for tag, entries in ((None, data.pte_data), *data.external_data.items()):
        for key, e in entries.items():
            layout = e.tensor_layout and astuple(e.tensor_layout)
            tagged_blobs.append(
                (tag, NamedBlob(key, blobs[e.buffer_index], e.alignment, layout))
            )
    return tagged_blobs


def merge_named_data(
    entries: Iterable[TaggedBlob], content: Callable[[Blob], bytes]
) -> NamedDataStoreOutput:
    """Merge named data as ExecuTorch's `NamedDataStore` does.

    Args:
        content: returns the bytes of a blob, or a stand-in for them.

    Raises PipelineError if two entries with one key have different content.
    """
    merged = NamedDataStore()
    for tag, entry in entries:
        layout = entry.layout and TensorLayout(*entry.layout)
        try:
            merged.add_named_data(
                entry.key,
                content(entry.blob),
                entry.alignment,
                tag,
                layout,
            )
        except ValueError as error:
            raise PipelineError(
                f"named data '{entry.key}' differs between methods"
            ) from error
    return merged.get_named_data_store_output()


def program_to_bytes(program: Program) -> bytes:
    """Return the flatbuffer of a program's plans, without its data.

    Raises PipelineError if ExecuTorch doesn't read the same program back.
    """
    bare = replace(program, constant_buffer=[], backend_delegate_data=[])
    # Aligned as in a `.pte`, since ExecuTorch keeps only the schema of the last alignment.
    data = _program_to_flatbuffer(bare, constant_tensor_alignment=ALIGNMENT).data
    reread = program_from_bytes(data)
    if reread != bare and repr(reread) != repr(
        bare
    ):  # a constant NaN isn't equal to itself
        raise PipelineError(
            "the emitted program does not survive ExecuTorch's flatbuffer round trip, so it "
            "can't be stored as an object; please report the model"
        )
    if len(_reread) > 7:
        _reread.clear()  # whose linking is for other processes
    _reread[data] = reread
    return data


def program_from_bytes(data: bytes) -> Program:
    """Return the program in a flatbuffer, as ExecuTorch's dataclasses."""
    return _reread.pop(data, None) or _flatbuffer_to_program(data)


def mutable_name(tensor: Tensor) -> str:
    """Return the emitted name of a mutable buffer in planned memory, or "" if it has none."""
    extra = tensor.extra_tensor_info
    if extra is None or extra.location is TensorDataLocation.EXTERNAL:
        return ""
    if tensor.allocation_info:
        return extra.fully_qualified_name or ""
    return ""


def confused_with_constant(name: str) -> PipelineError:
    """Return the error for a mutable buffer whose initial values equal those of a constant.

    ExecuTorch gives the buffer the constant's index, which belongs to another table
    (`_tensor_spec_to_evalue`).
    """
    return PipelineError(
        f"mutable buffer '{name}' has the initial values of a constant, and ExecuTorch would "
        "point it elsewhere; leave out `emit.emit_mutable_buffer_names`, or its initial values"
    )


def _check_named_mutable_buffers(output: EmitterOutput) -> None:
    """Raise PipelineError if a named buffer has a constant's index instead of the next one."""
    values = (
        value.val for plan in output.program.execution_plan for value in plan.values
    )
    stored = [
        (tensor.data_buffer_idx, name)
        for tensor in values
        if isinstance(tensor, Tensor) and tensor.data_buffer_idx > 0
        for name in [mutable_name(tensor)]
        if name
    ]
    last = len(output.mutable_data or [None]) - 1
    # From 1, since the first entry is reserved for tensors without data.
    for number, (index, name) in enumerate(stored, 1):
        if index != number or number > last:
            raise confused_with_constant(name)


def name_constant(blob: Blob, tensor: Tensor) -> str:
    """Return the name of a shared constant: its digest, dtype, sizes and dimension order.

    A runtime compares dtype, sizes and order with those stored next to the data.
    """
    dtype = str(int(tensor.scalar_type))
    sizes = "x".join(map(str, tensor.sizes))
    order = "x".join(str(int(dimension)) for dimension in tensor.dim_order)
    return ".".join([blob.digest, dtype, sizes, order])


def find_constant(owner: MethodObject, tensor: Tensor) -> Blob | None:
    """Return the blob of a constant tensor, or None for any other tensor."""
    if is_external(tensor):
        return owner.external_constants[tensor.data_buffer_idx]
    if tensor.data_buffer_idx > 0 and tensor.allocation_info is None:
        return owner.constants[tensor.data_buffer_idx]
    return None


def is_external(tensor: Tensor) -> bool:
    """Return whether a `.ptd` file holds a tensor's data."""
    extra = tensor.extra_tensor_info
    return extra is not None and extra.location is TensorDataLocation.EXTERNAL
