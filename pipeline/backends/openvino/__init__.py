"""OpenVINO, for Intel CPUs, GPUs and NPUs: executorch/backends/openvino."""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.backends import reasons
from pipeline.backends.entry import Backend, Constructor, Sight, extra, importable
from pipeline.backends.openvino.quantizer import (
    OpenvinoQuantize,
    apply_quantizer,
    make_quantizer,
    place_of,
)
from pipeline.backends.options import Distinct, Options
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class OpenvinoOptions(Options):
    """Options of `OpenvinoPartitioner` and of its compile specs."""

    device: Literal["CPU", "GPU", "NPU"] = Field(
        default="CPU",
        description="What the package runs on. OpenVINO compiles for it on the machine that "
        "builds, which must have one.",
    )
    op_types_to_skip: Distinct[str] | None = Field(
        default=None,
        description="Operators of the edge program that stay outside the delegate, such as "
        "aten.relu.default.",
    )
    op_names_to_skip: Distinct[str] | None = Field(
        default=None,
        description="Nodes of the edge program that stay outside the delegate, such as "
        "aten_relu_default_1.",
    )


def _openvino_partitioner(options: OpenvinoOptions) -> Partitioner:
    from executorch.backends.openvino import partitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    _check_device(options.device)
    types, names = set(options.op_types_to_skip or ()), set(options.op_names_to_skip or ())

    class Support(partitioner.OpenvinoOperatorsSupport):
        """Upstream asks what is to be skipped only of operators that it does not support."""

        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            if getattr(node.target, "__name__", "") in types or node.name in names:
                return False
            return super().is_node_supported(submodules, node)

    class Skipping(partitioner.OpenvinoPartitioner):  # type: ignore[misc]
        def partition(self, exported_program: Any) -> Any:
            original = partitioner.OpenvinoOperatorsSupport
            partitioner.OpenvinoOperatorsSupport = Support
            try:
                return super().partition(exported_program)
            finally:
                partitioner.OpenvinoOperatorsSupport = original

    return Skipping([CompileSpec("device", options.device.encode())], types, names)


def _check_device(device: str) -> None:
    from openvino import Core

    found = Core().available_devices
    if device not in found:
        raise PipelineError(
            f"openvino: device {device} is not on this machine, and OpenVINO compiles where the "
            f"device is; found: {', '.join(found)}"
        )


def _refuse_scalars(partition: Any) -> None:
    """ExecuTorch's runtime for OpenVINO fails when it runs a partition that gives a tensor without
    dimensions (tests/test_backend_openvino.py has one).

    Raises:
        PipelineError: this one does.
    """
    for node in partition.graph.find_nodes(op="output")[0].all_input_nodes:
        shape = getattr(node.meta.get("val"), "shape", None)
        if shape is not None and len(shape) == 0:
            place = place_of(node)
            raise PipelineError(
                f"openvino: a partition gives a tensor without dimensions, {node.name}{place}, "
                "which ExecuTorch's runtime for it can't run; give it one (keepdim=True), or say "
                f"`op_names_to_skip: [{node.name}]`"
            )


@contextmanager
def _around_preprocess() -> Iterator[None]:
    """In it, names that OpenVINO counts through the life of a process do not get into blobs, and
    partitions that can't be compiled or run are refused."""
    from executorch.backends.openvino import preprocess

    from pipeline.backends.openvino.blob import without_counters

    original = preprocess.openvino_compile

    def compile_model(*args: Any, **kwargs: Any) -> Any:
        if any(type(each).__name__ == "SymInt" for each in args):
            raise PipelineError(
                "openvino: a partition has a dynamic size among its inputs, which ExecuTorch's "
                "backend for it does not take; export the method with fixed sizes, "
                "or confine openvino with `modules` to parts that take tensors only"
            )
        _refuse_scalars(args[0])
        blob = original(*args, **kwargs).export_model().getvalue()
        if (kwargs.get("options") or {}).get("device", "CPU") == "CPU":
            blob = without_counters(blob)
        return SimpleNamespace(export_model=lambda: io.BytesIO(blob))

    preprocess.openvino_compile = compile_model
    try:
        yield
    finally:
        preprocess.openvino_compile = original


def _sight() -> Sight:
    """A blob holds no debug handles."""
    return Sight(remap=lambda payload, handles: payload)


@cache
def _facts() -> Mapping[str, str]:
    """OpenVINO rewrites a model for the CPU that it runs on: for its instruction sets, and for as
    many threads as suit its caches and cores."""
    told: dict[str, str] = {}
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
        for line in info:
            name, _, value = line.partition(":")
            if not name.strip():
                break  # the first core stands for all
            told[name.strip()] = value.strip()
    instructions = sorted(f for f in told.get("flags", "").split() if f.startswith(_INSTRUCTIONS))
    facts = {
        "cpu": " ".join((told.get("vendor_id", ""), told.get("model name", ""))).strip(),
        "cpus": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
        if hasattr(os, "sched_getaffinity")
        else str(os.cpu_count()),
        "instructions": " ".join(instructions),
        "machine": platform.machine(),
    }
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return facts | ({"ONEDNN_MAX_CPU_ISA": limit} if limit else {})


_INSTRUCTIONS = ("amx", "avx", "bmi", "f16c", "fma", "sse")


def _cannot_run() -> str:
    return "" if importable("openvino") else "openvino, whose runtime it needs, is not installed"


ENTRIES = (
    Backend(
        name="openvino",
        backend_id="OpenvinoBackend",
        details="executorch.backends.openvino.preprocess:OpenvinoBackend",
        summary="Intel CPUs, GPUs and NPUs",
        options=OpenvinoOptions,
        quantizer=OpenvinoQuantize,
        distributions=("executorch", "flatbuffers", "nncf", "openvino", "torch", "torchao"),
        make_partitioner=_openvino_partitioner,
        make_quantizer=make_quantizer,
        apply_quantizer=apply_quantizer,
        reasons=reasons.of_openvino,
        looks_into=frozenset(),
        make_sight=_sight,
        constructors=(
            Constructor(
                "executorch.backends.openvino.partitioner:OpenvinoPartitioner",
                left_out={"compile_spec": "made of `device`"},
            ),
            Constructor(
                "executorch.backends.openvino.quantizer.quantizer:OpenVINOQuantizer",
                of="quantizer",
                left_out={"kwargs": "NNCF's: `group_size` and `all_layers` go through it"},
            ),
            Constructor(
                "executorch.backends.openvino.quantizer.quantizer:quantize_model",
                of="quantizer",
                left_out={
                    "captured_model": "the program",
                    "calibration_dataset": "the model's calibration inputs",
                    "transform_fn": "the inputs are arguments already",
                    "extra_quantizer_options": "for NNCF's own classes",
                    "kwargs": "for NNCF's own classes",
                },
            ),
        ),
        beyond={
            "device": "the compile spec of this name",
            "dynamic": "always false",
            "group_size": "of nncf's get_weight_compression_configuration",
            "all_layers": "of nncf's get_weight_compression_configuration",
            "awq": "of nncf's compress_pt2e",
            "modules": "nncf's ignored scope",
            "operators": "nncf's ignored scope",
            "scale_estimation": "of nncf's compress_pt2e",
        },
        edge_operators=("aten.bitwise_and.Scalar", "aten.bitwise_right_shift.Tensor_Scalar"),
        requirements=(extra("openvino", "openvino", "nncf"),),
        facts=_facts,
        around_preprocess=_around_preprocess,
        cannot_run=_cannot_run,
    ),
)
