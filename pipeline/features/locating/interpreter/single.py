"""Runs one delegate on ExecuTorch's runtime, in a package with only its call.

The interpreter can thus mix such delegates with others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executorch.exir import schema
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.version import EXECUTORCH_SCHEMA_VERSION

from pipeline.backends.delegate_runtime import DelegateRuntime
from pipeline.devices.bindings import DTYPES, Package
from pipeline.devices.interface import PackageFiles

NAME = "delegate"  # the package's only method
_ALIGNMENT = 16
# Its payloads name the data that they need. Other backends may make up the keys themselves.
_XNNPACK = "XnnpackBackend"


class ExecutorchDelegate(DelegateRuntime):
    """Runs one delegate of one plan.

    Args:
        values: the arguments of its call, as the plan declares them.
        results: the number of results, which come last among the arguments.
    """

    def __init__(self, backend_id: str, values: Sequence[Any], results: int) -> None:
        self._backend_id = backend_id
        self._values = values
        self._split = len(values) - results

    def init(
        self,
        processed_bytes: bytes,
        compile_specs: Sequence[tuple[str, bytes]],
        named_data: Mapping[str, bytes],
    ) -> Package:
        package = Package(self.pack(processed_bytes, compile_specs, named_data))
        package.load(NAME)
        return package

    def pack(
        self,
        processed_bytes: bytes,
        compile_specs: Sequence[tuple[str, bytes]],
        named_data: Mapping[str, bytes],
    ) -> PackageFiles:
        """Return a package whose method `NAME` calls the delegate."""
        store = NamedDataStore()
        for key, data in named_data.items():
            # Other data are mostly the weights of the method's other delegates.
            if self._backend_id != _XNNPACK or key.encode() in processed_bytes:
                store.add_named_data(key, data, alignment=_ALIGNMENT)
        file = PTEFile(
            program=self._program(processed_bytes, compile_specs),
            named_data=store.get_named_data_store_output() if named_data else None,
        )
        content = bytes(serialize_pte_binary(file, extract_delegate_segments=True))
        return PackageFiles("package", content)

    def execute(self, handle: Package, inputs: Sequence[Any]) -> Sequence[Any]:
        return handle.run(NAME, inputs)

    def _place_values(self) -> tuple[list[schema.EValue], int]:
        """Return the arguments, with planned memory for each tensor, and the memory's size.

        The tensors are placed one after another.
        """
        values, size = [], 0
        for value in self._values:
            if isinstance(value, schema.Tensor):
                # Constants of the package are inputs here, too.
                allocation = schema.AllocationDetails(1, size & 0xFFFFFFFF, size >> 32)
                value = replace(
                    value,
                    data_buffer_idx=0,
                    allocation_info=allocation,
                    extra_tensor_info=None,
                )
                item = DTYPES[int(value.scalar_type)].itemsize
                size += -(-math.prod(value.sizes) * item // _ALIGNMENT) * _ALIGNMENT
            values.append(schema.EValue(value))
        return values, size

    def _program(
        self, processed: bytes, specs: Sequence[tuple[str, bytes]]
    ) -> schema.Program:
        values, memory_size = self._place_values()
        data = schema.BackendDelegateDataReference(schema.DataLocation.INLINE, 0)
        compile_specs = [CompileSpec(key, value) for key, value in specs]
        places = list(range(len(values)))
        call = schema.Instruction(schema.DelegateCall(0, places))
        plan = schema.ExecutionPlan(
            name=NAME,
            container_meta_type=schema.ContainerMetadata("", ""),
            values=values,
            inputs=places[: self._split],
            outputs=places[self._split :],
            chains=[schema.Chain([], [], [call], None)],
            operators=[],
            delegates=[schema.BackendDelegate(self._backend_id, data, compile_specs)],
            non_const_buffer_sizes=[0, memory_size],
        )
        return schema.Program(
            version=EXECUTORCH_SCHEMA_VERSION,
            execution_plan=[plan],
            constant_buffer=[schema.Buffer(b"")],
            backend_delegate_data=[schema.BackendDelegateInlineData(processed)],
            segments=[],
            constant_segment=schema.SubsegmentOffsets(0, []),
            named_data=[],
        )
