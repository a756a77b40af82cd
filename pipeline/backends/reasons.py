"""Why the partitioners of ExecuTorch's backends leave nodes, as far as each of them tells.

Each function is what an entry has as `reasons`: a context around the call of a partitioner, which
gives a mapping that is full when it ends. What the partitioners say they log, print or keep in
objects of their own, so within it their own functions are listened to; what they choose stays as it
is. A reason goes on from "it is left because": a few words, the partitioner's own where it has any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.backends.entry import Why

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram

_NOT_OF_THIS_TYPE = "its partitioner takes no operators of this type"
_NOT_HERE = "its partitioner takes such operators, but not this one, and does not say why"


@contextmanager
def of_xnnpack(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Its partitioner configs are asked one by one, and tell `WhyNoPartition` what they refuse."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.exir.backend.canonical_partitioners.config_partitioner import (
        format_target_name,
    )
    from executorch.exir.backend.utils import WhyNoPartition

    found: Why = {}
    with _replaced(WhyNoPartition, "__call__", _listening(found)):
        yield found
    taken = partitioner.target_partitioner_configs  # type: ignore[attr-defined]
    known = {config.target_name for config in ALL_PARTITIONER_CONFIGS}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if node in found:
            found[node] += _dtypes(node) if found[node] == "invalid dtype" else ""
            continue
        name = format_target_name(getattr(node.target, "__name__", ""))
        if name in taken:
            found[node] = _NOT_HERE
        elif name in known:
            found[node] = "`configs` leaves its config out"
        else:
            found[node] = _NOT_OF_THIS_TYPE


@contextmanager
def of_vulkan(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """It logs each node that it skips."""
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import (
        VulkanSupportedOperators,
    )

    found: Why = {}
    with _replaced(VulkanSupportedOperators, "log_skip", _listening(found)):
        yield found


@contextmanager
def of_coreml(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """It logs each message once, about whatever node it was looking at."""
    from executorch.backends.apple.coreml.partition import coreml_partitioner

    support = coreml_partitioner._OperatorsSupportedForCoreMLBackend
    found: Why = {}
    looked_at: list[Any] = []

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def asked(self: Any, submodules: Any, node: Any) -> bool:
            looked_at.append(node)
            try:
                return original(self, submodules, node)
            finally:
                looked_at.pop()

        return asked

    def listening(original: Callable[..., Any]) -> Callable[..., Any]:
        def told(self: Any, message: str) -> None:
            if looked_at:
                found.setdefault(looked_at[-1], _of_coremls(message))
            original(self, message)

        return told

    with (
        _replaced(support, "is_node_supported", asking),
        _replaced(support, "log_once", listening),
    ):
        yield found


def _of_coremls(message: str) -> str:
    """`Skipping op for CoreML delegation because it is ...: aten.x`, without what is known."""
    reason = message.partition(" because ")[2] or message
    return reason.removesuffix("  Overriding support.").removesuffix("  Overriding op support.")


@contextmanager
def of_arm(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """TOSA's, Ethos-U's and VGF's: they report each node that one of their checks rejects."""
    from executorch.exir.backend.utils import WhyNoPartitionReporter

    found: Why = {}
    with _replaced(WhyNoPartitionReporter, "report_reject", _listening(found)):
        yield found


@contextmanager
def of_openvino(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """It asks OpenVINO's frontend for PyTorch about operators, and nothing about their uses."""
    from executorch.backends.openvino.partitioner import OpenvinoOperatorsSupport

    found: Why = {}

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def asked(self: Any, submodules: Any, node: Any) -> bool:
            taken = original(self, submodules, node)
            if not taken:
                found.setdefault(node, _NOT_OF_THIS_TYPE)
            return taken

        return asked

    with _replaced(OpenvinoOperatorsSupport, "is_node_supported", asking):
        yield found
    names = partitioner._op_names_to_skip or ()  # type: ignore[attr-defined]
    types = partitioner._op_types_to_skip or ()  # type: ignore[attr-defined]
    for node in program.graph.nodes:
        if node.name in names:
            found[node] = "`op_names_to_skip` names it"
        elif getattr(node.target, "__name__", "") in types:
            found[node] = "`op_types_to_skip` names it"


@contextmanager
def of_mlx(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Its builder goes over the program first, and keeps what it says of each node."""
    found: Why = {}
    yield found
    support = getattr(partitioner, "supported_ops", None)
    for node, info in support._builder.node_info.items() if support is not None else ():
        if not info.supported:
            found[node] = info.unsupported_reason or _NOT_OF_THIS_TYPE


@contextmanager
def of_mps(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """It takes what it has a visitor for."""
    found: Why = {}
    yield found
    visitors = partitioner.supported_ops.node_visitors  # type: ignore[attr-defined]
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") not in visitors:
            found[node] = _NOT_OF_THIS_TYPE


def _listening(found: Why) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a method that is told a node and a reason. The first one counts: it is the nearest."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def told(self: Any, node: Any, reason: str) -> None:
            found.setdefault(node, reason)
            original(self, node, reason)

        return told

    return make


def _dtypes(node: Any) -> str:
    """Of a node's tensors, in the order of its arguments, and of what it gives."""
    import torch

    values = [each.meta.get("val") for each in (*node.all_input_nodes, node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    dtypes = dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return f": {', '.join(dtypes)}" if dtypes else ""


@contextmanager
def _replaced(
    owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within it, a class has another function in place of one of its own."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
