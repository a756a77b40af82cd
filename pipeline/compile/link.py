"""Links objects into one multi-method `.pte` that stores each constant, weight and payload once.

The result equals, byte for byte, the file that ExecuTorch writes when it emits all methods
together. Its emitter goes through the methods by name and gives every new constant the next index;
linking walks the plans in the same order and gives the same indices (exir/emit/_emit_program.py,
`emit_program`, and exir/emit/_emitter.py, `_tensor_spec_to_evalue` and `_emit_delegate`).
ExecuTorch's own serializer lays out the file, with stand-ins for the blobs of the store, so that
the weights of a package are streamed and never held in memory together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from executorch.exir import ExecutorchBackendConfig
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._serialize import serialize_for_executorch
from executorch.exir.emit import EmitterOutput
from executorch.exir.emit._emitter import _Emitter
from executorch.exir.schema import (
    BackendDelegateInlineData,
    Buffer,
    EValue,
    ExecutionPlan,
    ExtraTensorInfo,
    Program,
    SubsegmentOffsets,
    Tensor,
    TensorDataLocation,
)
from executorch.exir.tensor import TensorSpec, make_tensor_value
from executorch.exir.version import EXECUTORCH_SCHEMA_VERSION
from executorch.extension.flat_tensor.serialize.serialize import (
    FlatTensorConfig,
    FlatTensorSerializer,
)

from pipeline.compile.cords import find_pieces
from pipeline.compile.objects import (
    Blob,
    BlobBytes,
    MethodObject,
    TaggedBlob,
    check_file_names,
    confused_with_constant,
    find_constant,
    is_external,
    merge_named_data,
    mutable_name,
    name_constant,
    program_from_bytes,
)
from pipeline.compile.sharing import NOTHING_SHARED, Shared
from pipeline.program.constant_values import decode_constant
from pipeline.program.training import trained_method
from pipeline.store.errors import PipelineError
from pipeline.store.pieces import Piece
from pipeline.store.store import Store


def lay_out(
    objects: Sequence[MethodObject],
    constant_methods: Mapping[str, Any],
    store: Store,
    order: Sequence[str] = (),
    layout: Mapping[str, Any] | None = None,
    shared: Shared = NOTHING_SHARED,
) -> dict[str, list[Piece]]:
    """Return the pieces of each file of a package: blobs of objects, and the bytes between them.

    Files are keyed by the stem of a `.ptd`, or "" for the `.pte`.

    Named data are merged in the order of the model's methods, as ExecuTorch merges them in the
    order of the methods dict; everything else is ordered by method name.

    Args:
        objects: in the order of the model's methods, by the first method of each object.
        constant_methods: values by name, as `constant_values` describes them.
        order: the model's methods; needed if an object has several methods or a method trains.
        layout: the options of `ExecutorchBackendConfig` for the layout of the file.
        shared: the data that files of the package's family hold instead.

    Raises:
        MissingBlobError: the store lacks a blob.
        PipelineError: two methods give different data for one name.
    """
    config = ExecutorchBackendConfig(**(layout or {}))
    output, named = _join(objects, constant_methods, store, order, shared)
    if (
        not config.extract_delegate_segments
    ):  # then the flatbuffer itself contains the payloads
        for payload in output.program.backend_delegate_data:
            if isinstance(payload.data, BlobBytes):
                payload.data = store.read(payload.data.blob.digest)
    check_file_names((*(output.external_constant_map or ()), *named.external_data))
    # The serializer changes a copy, but nothing else needs the program.
    vars(output.program)["__deepcopy__"] = lambda memo: output.program
    serializer = FlatTensorSerializer(FlatTensorConfig(config.segment_alignment))
    pte, ptds = serialize_for_executorch(output, config, serializer, named)
    cords = {
        "": pte,
        **{tag.removesuffix(".ptd"): cord for tag, cord in sorted(ptds.items())},
    }
    return {stem: find_pieces(cord, store) for stem, cord in cords.items()}


_Table: TypeAlias = dict[Blob, int]  # indices, in the order of first use


def _index(table: _Table, blob: Blob) -> int:
    return table.setdefault(blob, len(table))


class _Tables:
    """The tables that the emitter's `_ProgramState` holds for all methods.

    Index 0 of constants and mutable data is reserved for tensors without data; no lookup by content
    finds it.
    """

    def __init__(self, shared: Shared = NOTHING_SHARED) -> None:
        self.constants: _Table = {}
        self.mutable: list[Blob] = []
        self.delegates: _Table = {}
        self.external_constants: _Table = {}
        self.external: dict[str, dict[str, int]] = {}
        self.shared = shared
        # The last index of each blob in `mutable`, which may contain it several times.
        self._latest: _Table = {}

    def relocate(self, plan: ExecutionPlan, owner: MethodObject, trains: bool) -> None:
        """Change the indices in a plan, in place, from its object's tables to these.

        If the object `trains`, its tensors in a `.ptd` file stay there, under their names.
        """
        tags = {
            name: tag for tag, entries in owner.external.items() for name, _ in entries
        }
        for value in plan.values:
            if isinstance(value.val, Tensor):
                if not (trains and is_external(value.val)) and self._share(
                    value.val, owner
                ):
                    continue
                self._relocate_tensor(value.val, owner, tags)
        for delegate in plan.delegates:
            payload = owner.delegates[delegate.processed.index]
            delegate.processed.index = _index(self.delegates, payload)

    def _share(self, tensor: Tensor, owner: MethodObject) -> bool:
        """Point a constant to the family's file if it is shared; return whether it is."""
        blob = find_constant(owner, tensor)
        if blob is None or blob.digest not in self.shared.constants:
            return False
        name = name_constant(blob, tensor)
        tensor.data_buffer_idx = _index(self.external_constants, blob)
        tensor.extra_tensor_info = ExtraTensorInfo(
            fully_qualified_name=name, location=TensorDataLocation.EXTERNAL
        )
        return True

    def _relocate_tensor(
        self, tensor: Tensor, owner: MethodObject, tags: dict[str, str]
    ) -> None:
        index = tensor.data_buffer_idx
        extra = tensor.extra_tensor_info
        if is_external(tensor) and extra is not None:
            name = extra.fully_qualified_name or ""
            blob = owner.external_constants[index]
            tag = tags[name]
            shared_index = _index(self.external_constants, blob)
            tensor.data_buffer_idx = shared_index
            if (
                self.external.setdefault(tag, {}).setdefault(name, shared_index)
                != shared_index
            ):
                raise PipelineError(
                    f"external tensor '{name}' differs between methods, and {tag}.ptd can hold "
                    "only one tensor of that name; keep these tensors in the package, or rename "
                    "them"
                )
        elif index > 0 and tensor.allocation_info is not None:
            tensor.data_buffer_idx = 1 + self._index_mutable(
                owner.mutable[index], tensor
            )
        elif index > 0:
            tensor.data_buffer_idx = 1 + _index(self.constants, owner.constants[index])

    def _index_mutable(self, blob: Blob, tensor: Tensor) -> int:
        """Return the index of a mutable buffer's initial values.

        ExecuTorch looks up a named buffer's values among the constants, not the mutable data
        (`_tensor_spec_to_evalue`), so it adds a new entry for each named buffer.
        """
        name = mutable_name(tensor)
        if name and blob in self.constants:
            raise confused_with_constant(name)
        if name or blob not in self._latest:
            self._latest[blob] = len(self.mutable)
            self.mutable.append(blob)
        return self._latest[blob]


class _Getters:
    """A stand-in for an emitter that has emitted all methods and emits the constant ones next."""

    def __init__(self, tables: _Tables, store: Store) -> None:
        self.tables = tables
        self.store = store

    def emit(self, constant_methods: Mapping[str, Any]) -> list[ExecutionPlan]:
        """Return a plan for each constant method, with its value decoded by `decode_constant`."""
        read = self.store.read
        values = {
            name: decode_constant(description, read)
            for name, description in constant_methods.items()
        }
        leaves = {name: value for name, (value, _) in values.items()}
        plans = _Emitter._emit_prim_getters(self, leaves)  # type: ignore[arg-type]
        for plan, (_, structure) in zip(plans, values.values(), strict=True):
            if structure is not None:
                plan.container_meta_type.encoded_out_str = structure
        return plans

    def _tensor_spec_to_evalue(self, spec: TensorSpec) -> EValue:
        """Return the value of a constant tensor, looked up by its content.

        This replaces the emitter's method of the same name.
        """
        data = bytes(spec.storage) if spec.allocated_memory else b""  # type: ignore[arg-type]
        blob = Blob(self.store.put(data), len(data))
        return EValue(
            make_tensor_value(1 + _index(self.tables.constants, blob), None, spec)
        )


def _join(
    objects: Sequence[MethodObject],
    constant_methods: Mapping[str, Any],
    store: Store,
    order: Sequence[str],
    shared: Shared,
) -> tuple[EmitterOutput, NamedDataStoreOutput]:
    owned: list[tuple[ExecutionPlan, MethodObject, bool]] = []
    training: list[ExecutionPlan] = []
    for owner in objects:
        plans = program_from_bytes(store.read(owner.program.digest)).execution_plan
        methods, indices = _split_training(plans)
        owned += [(plan, owner, bool(indices)) for plan in methods]
        training += indices
    # In the order in which ExecuTorch's emitter visits the methods.
    owned.sort(key=lambda pair: pair[0].name)
    training.sort(key=lambda plan: _place_of(plan, order))
    tables = _Tables(shared=shared)
    for plan, owner, trains in owned:
        tables.relocate(plan, owner, trains)
    # Constant methods come last, as `emit_program` emits them.
    getters = _Getters(tables, store).emit(constant_methods)
    reserved = Buffer(storage=b"")
    mutable = [reserved, *(Buffer(storage=_stand_in(b)) for b in tables.mutable)]
    output = EmitterOutput(
        program=Program(
            version=EXECUTORCH_SCHEMA_VERSION,
            execution_plan=[*(plan for plan, *_ in owned), *training, *getters],
            constant_buffer=[
                reserved,
                *(Buffer(storage=_stand_in(b)) for b in tables.constants),
            ],
            backend_delegate_data=[
                BackendDelegateInlineData(data=_stand_in(blob))
                for blob in tables.delegates
            ],
            segments=[],
            constant_segment=SubsegmentOffsets(segment_index=0, offsets=[]),
        ),
        debug_handle_map={},
        method_to_delegate_debug_id_map={},
        instruction_id_to_num_outs_map={},
        mutable_data=mutable if len(mutable) > 1 else None,
        external_constant_buffer=[
            _stand_in(blob) for blob in tables.external_constants
        ],
        external_constant_map=tables.external,
    )
    named = (
        tagged_entry
        for tagged_entry in _iter_named_data(objects, order)
        if tagged_entry[1].key not in shared.keys
    )
    return output, merge_named_data(named, _stand_in)


def _split_training(
    plans: Sequence[ExecutionPlan],
) -> tuple[list[ExecutionPlan], list[ExecutionPlan]]:
    """Split plans into those of methods and of constant methods that describe training outputs."""
    # Constant methods about training follow all methods, in the order of the model.
    names = {plan.name for plan in plans}
    methods: list[ExecutionPlan] = []
    training: list[ExecutionPlan] = []
    for plan in plans:
        method = trained_method(plan.name)
        (training if method != plan.name and method in names else methods).append(plan)
    return methods, training


def _place_of(plan: ExecutionPlan, order: Sequence[str]) -> int:
    method = trained_method(plan.name)
    if method in order:
        return order.index(method)
    return 0


def _stand_in(blob: Blob) -> bytes:
    return BlobBytes(blob) if blob.size else b""


def _iter_named_data(
    objects: Sequence[MethodObject], order: Sequence[str]
) -> Iterator[TaggedBlob]:
    """Yield named data by object or, if an object has several methods, by method."""
    owners = {method: owner for owner in objects for method in owner.keys}
    if not owners:
        yield from chain.from_iterable(owner.tagged() for owner in objects)
        return
    singles = iter([owner for owner in objects if not owner.keys])
    for method in order:
        if method in owners:
            tagged = owners[method].tagged()
            by_key = {entry.key: (tag, entry) for tag, entry in tagged}
            yield from (by_key[key] for key in owners[method].keys[method])
        else:
            yield from next(singles).tagged()
