"""The content of a package, as ExecuTorch's own deserializer reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from executorch.exir import schema
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

from pipeline.devices.interface import DeviceError, PackageFiles


@dataclass(frozen=True)
class PackageData:
    """A package, and the named data of its `.pte` and its `.ptd` files."""

    file: PTEFile
    named: Mapping[str, bytes]

    @cached_property
    def plans(self) -> dict[str, schema.ExecutionPlan]:
        """The plans of its methods by name."""
        return {plan.name: plan for plan in self.file.program.execution_plan}


def read_package(files: PackageFiles) -> PackageData:
    """Read a package with ExecuTorch's deserializer. Raises DeviceError."""
    content = files.contents()
    try:
        file = deserialize_pte_binary(content)
    except Exception as error:  # damaged bytes may raise anything
        reason = f"does not open: corrupt file ({type(error).__name__}: {error})"
        raise DeviceError(f"{files.name}: ", reason) from error
    named = named_bytes(file.named_data)
    for data in files.data():
        try:
            payload = FlatTensorSerializer().deserialize(Cord(data))
        except Exception as error:  # as above
            reason = f"does not open: corrupt external data (.ptd) ({error})"
            raise DeviceError(f"{files.name}: ", reason) from error
        for key, entry in payload.named_data.items():
            named[key] = bytes(payload.buffers[entry.buffer_index])
    return PackageData(file, named)


def named_bytes(data: NamedDataStoreOutput | None) -> dict[str, bytes]:
    """Return named data by key; empty if `data` is None."""
    if data is None:
        return {}
    return {
        key: bytes(data.buffers[entry.buffer_index])
        for key, entry in data.pte_data.items()
    }


def read_payload(data: PackageData, delegate: schema.BackendDelegate) -> bytes:
    """Return the processed bytes of a delegate, or b"" if the file lacks them."""
    payloads = data.file.program.backend_delegate_data
    index = delegate.processed.index
    return bytes(payloads[index].data) if index < len(payloads) else b""
