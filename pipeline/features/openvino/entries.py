"""The OpenVINO backend, for Intel CPUs, GPUs and NPUs: executorch/backends/openvino."""

from __future__ import annotations

import io
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from pipeline.backends.entry import (
    Backend,
    CacheScope,
    Execution,
    Lowering,
    Preprocessing,
    Quantization,
    Why,
)
from pipeline.backends.host import EXECUTORCH, Host, extra, importable
from pipeline.backends.options import Distinct, Options
from pipeline.backends.reasons import NOT_OF_THIS_TYPE
from pipeline.features.openvino.quantizer import (
    OpenvinoQuantize,
    apply_quantizer,
    describe_place,
)
from pipeline.program.patching import wrapped
from pipeline.store.errors import PipelineError
from pipeline.store.toolchain import cpu_fields

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node

_log = logging.getLogger(__name__)


class OpenvinoOptions(Options):
    """Options of `OpenvinoPartitioner` and of its compile specs."""

    device: Literal["CPU", "GPU", "NPU"] = "CPU"
    """The processor that runs the package. OpenVINO compiles on the build machine, which must
    contain such a processor."""
    op_types_to_skip: Distinct[str] | None = None
    """Operators of the edge program that stay outside the delegate, such as aten.relu.default."""
    op_names_to_skip: Distinct[str] | None = None
    """Nodes of the edge program that stay outside the delegate, such as aten_relu_default_1."""


def _openvino_partitioner(options: OpenvinoOptions) -> Partitioner:
    from executorch.backends.openvino import partitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from openvino import Core

    devices = Core().available_devices
    if options.device not in devices:
        raise PipelineError(
            f"openvino: device {options.device} is not on this machine, but OpenVINO compiles on "
            f"the machine with the device; found: {', '.join(devices)}"
        )
    types, names = (
        set(options.op_types_to_skip or ()),
        set(options.op_names_to_skip or ()),
    )

    def skip(
        original: Callable[..., bool], checker: Any, submodules: Any, node: Node
    ) -> bool:
        # Upstream applies these lists only to operators that it doesn't support anyway.
        if getattr(node.target, "__name__", "") in types or node.name in names:
            return False
        return original(checker, submodules, node)

    class Skipping(partitioner.OpenvinoPartitioner):  # type: ignore[misc]
        def partition(self, exported_program: Any) -> Any:
            with wrapped(
                partitioner.OpenvinoOperatorsSupport, "is_node_supported", skip
            ):
                return super().partition(exported_program)

    return Skipping([CompileSpec("device", options.device.encode())], types, names)


def _warn_of_scalars(partition: Any) -> None:
    """Log a warning for each tensor without dimensions that a partition returns.

    ExecuTorch's OpenVINO runtime fails to run it (tests/features/openvino/test_openvino.py has an
    example).
    """
    for node in partition.graph.find_nodes(op="output")[0].all_input_nodes:
        shape = getattr(node.meta.get("val"), "shape", None)
        if shape is not None and len(shape) == 0:
            _log.warning(
                "openvino: a partition returns a tensor without dimensions, %s%s, which "
                "ExecuTorch's OpenVINO runtime can't run; add one (keepdim=True), or set "
                "`op_names_to_skip: [%s]`",
                node.name,
                describe_place(node),
                node.name,
            )


def _around_preprocess() -> AbstractContextManager[None]:
    """Return a context that makes blobs reproducible, and explains partitions that can't be used.

    OpenVINO counts the names in blobs through the life of a process, so they are renumbered. Some
    partitions can't be compiled, and some can't be run.
    """
    from executorch.backends.openvino import preprocess

    from pipeline.features.openvino.blob import without_counters

    def compile_model(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        _warn_of_scalars(args[0])
        try:
            blob = original(*args, **kwargs).export_model().getvalue()
        except Exception as error:  # it may raise anything
            if not any(type(arg).__name__ == "SymInt" for arg in args):
                raise
            raise PipelineError(
                "openvino: a partition has a dynamic size among its inputs, which ExecuTorch's "
                "OpenVINO backend does not accept; export the method with fixed sizes, or use "
                "`modules` to limit openvino to parts that take only tensors"
            ) from error
        if (kwargs.get("options") or {}).get("device", "CPU") == "CPU":
            blob = without_counters(blob)
        return SimpleNamespace(export_model=lambda: io.BytesIO(blob))

    return wrapped(preprocess, "openvino_compile", compile_model)


@contextmanager
def _reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Collect the reasons why nodes are not delegated.

    Either OpenVINO's PyTorch frontend lacks the operator, which is all that it checks, or an option
    skips the node.
    """
    from executorch.backends.openvino.partitioner import OpenvinoOperatorsSupport

    why: Why = {}

    def listen(
        original: Callable[..., bool], checker: Any, submodules: Any, node: Node
    ) -> bool:
        is_supported = original(checker, submodules, node)
        if not is_supported:
            why.setdefault(node, NOT_OF_THIS_TYPE)
        return is_supported

    with wrapped(OpenvinoOperatorsSupport, "is_node_supported", listen):
        yield why
    names = partitioner._op_names_to_skip or ()  # type: ignore[attr-defined]
    types = partitioner._op_types_to_skip or ()  # type: ignore[attr-defined]
    for node in program.graph.nodes:
        if node.name in names:
            why[node] = "`op_names_to_skip` names it"
        elif getattr(node.target, "__name__", "") in types:
            why[node] = "`op_types_to_skip` names it"


def _facts() -> Mapping[str, str]:
    """Describe this CPU, for which OpenVINO optimizes models.

    It optimizes for the CPU's instruction sets, and for the number of threads that suits its caches
    and cores.
    """
    fields = cpu_fields()
    affinity = hasattr(os, "sched_getaffinity")
    cpus = (
        f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
        if affinity
        else os.cpu_count()
    )
    flags = sorted(
        f for f in fields.get("flags", "").split() if f.startswith(_INSTRUCTIONS)
    )
    facts = {
        "cpu": " ".join(
            (fields.get("vendor_id", ""), fields.get("model name", ""))
        ).strip(),
        "cpus": str(cpus),
        "instructions": " ".join(flags),
        "machine": platform.machine(),
    }
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return facts | ({"ONEDNN_MAX_CPU_ISA": limit} if limit else {})


def _cannot_run() -> str:
    return (
        ""
        if importable("openvino")
        else "openvino, whose runtime it needs, is not installed"
    )


_INSTRUCTIONS = ("amx", "avx", "bmi", "f16c", "fma", "sse")
_OPENVINO = "executorch.backends.openvino."
ENTRIES = (
    Backend(
        name="openvino",
        backend_id="OpenvinoBackend",
        summary="Intel CPUs, GPUs and NPUs",
        options=OpenvinoOptions,
        lowering=Lowering(
            make_partitioner=_openvino_partitioner,
            reasons=_reasons,
            control_flow=frozenset(),
            edge_operators=(
                "aten.bitwise_and.Scalar",
                "aten.bitwise_right_shift.Tensor_Scalar",
            ),
            name_lists={"op_types_to_skip": "operator", "op_names_to_skip": "node"},
        ),
        quantization=Quantization(
            options=OpenvinoQuantize, apply_quantizer=apply_quantizer
        ),
        preprocessing=Preprocessing(
            details=f"{_OPENVINO}preprocess:OpenvinoBackend",
            around=_around_preprocess,
            # A blob contains no debug handles.
            make_cache_scope=lambda: CacheScope(remap=lambda payload, handles: payload),
        ),
        host=Host(
            requirements=(extra("openvino", "openvino", "nncf"),),
            distributions=(*EXECUTORCH, "nncf", "openvino"),
            facts=_facts,
        ),
        execution=Execution(cannot_run=_cannot_run),
    ),
)
