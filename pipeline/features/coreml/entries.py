"""Core ML: executorch/backends/apple/coreml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.backends.entry import (
    Backend,
    Execution,
    Lowering,
    Preprocessing,
    Quantization,
    Why,
    lazy,
)
from pipeline.backends.host import EXECUTORCH, Host
from pipeline.backends.options import edge_operators
from pipeline.backends.quantize_options import QuantizeConfig
from pipeline.features.coreml.buffers import find_taken_over
from pipeline.features.coreml.enumerated import takes_several
from pipeline.features.coreml.options import CoreMLOptions, CoreMLQuantize
from pipeline.program.patching import wrapped
from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node


def _make_partitioner(options: CoreMLOptions) -> Partitioner:
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    names = options.skip_ops_for_coreml_delegation or ()
    edge_operators(names, "skip_ops_for_coreml_delegation")  # which must be installed
    skipped: list[str] = []
    for name in names:
        # The partitioner compares in lower case and, before the edge dialect, without a namespace.
        lower_case = name.lower()
        without_namespace = lower_case.partition(".")[2]
        skipped += [lower_case, without_namespace]
    arguments = {
        "skip_ops_for_coreml_delegation": skipped or None,
        "compile_specs": _make_compile_specs(options),
        "take_over_mutable_buffer": options.take_over_mutable_buffer,
        "lower_full_graph": options.lower_full_graph,
        "take_over_constant_data": options.take_over_constant_data,
    }
    if options.enumerated_shapes is None:
        return CoreMLPartitioner(**arguments)
    from pipeline.features.coreml.shapes import EnumeratedPartitioner

    several = takes_several(options.minimum_deployment_target)
    return EnumeratedPartitioner(options.enumerated_shapes, several, **arguments)


def _make_compile_specs(options: CoreMLOptions) -> list[CompileSpec]:
    import coremltools as ct
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import (
        MULTIMETHOD_WEIGHT_SHARING_STRATEGY as STRATEGY,
    )

    unknown = [name for name in options.pass_names or () if name not in PASS_REGISTRY]
    if unknown:
        hint = did_you_mean(unknown[0], sorted(PASS_REGISTRY.passes))
        raise PipelineError(f"pass_names: no pass {', '.join(unknown)}; {hint}")
    targets = {name.lower(): target for name, target in ct.target.__members__.items()}
    target, quantizer = (
        options.minimum_deployment_target,
        options.op_linear_quantizer_config,
    )
    passes = options.pass_names
    specs = CoreMLBackend.generate_compile_specs(
        compute_unit=ct.ComputeUnit[options.compute_unit.upper()],
        minimum_deployment_target=targets[target] if target is not None else None,
        compute_precision=ct.precision[options.compute_precision.upper()],
        model_type=CoreMLBackend.MODEL_TYPE(options.model_type),
        op_linear_quantizer_config=quantizer.resolved()
        if quantizer is not None
        else None,
        pass_names=list(passes) if passes is not None else None,
    )
    strategy = STRATEGY(options.multimethod_weight_sharing_strategy)
    if strategy is not STRATEGY.POSITIONAL:
        specs += [
            CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(
                strategy
            )
        ]
    return specs


def _options_apart(options: CoreMLOptions) -> bool:
    return options.multimethod_weight_sharing_strategy == "disabled"


def _specs_apart(specs: Sequence[CompileSpec]) -> bool:
    from executorch.backends.apple.coreml.compiler import CoreMLBackend

    strategy = CoreMLBackend.multimethod_weight_sharing_strategy_from_compile_specs(
        specs
    )
    return bool(strategy.value == "disabled")


# Targets that can't compute in int8: iOS versions, and other systems' versions of the same years.
_WITHOUT_INT8 = frozenset(
    {"ios15", "ios16", "macos12", "macos13", "tvos15", "tvos16", "watchos8", "watchos9"}
)


def _takes_quantized(options: CoreMLOptions, config: QuantizeConfig) -> str | None:
    """Return the config line that lets Core ML lower XNNPACK's or Vulkan's quantized programs.

    Returns "" if none is needed, and None if Core ML can't lower them, since it needs constant
    scales.
    """
    dynamic = any(
        getattr(scheme, "dynamic", config.dynamic) for scheme in config.schemes()
    )
    if config.quantizer not in ("xnnpack", "vulkan") or dynamic:
        return None
    target = options.minimum_deployment_target
    if target is None or target in _WITHOUT_INT8:
        return "coreml: {minimum_deployment_target: ios17}"
    return ""


@contextmanager
def _reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Collect the partitioner's logged reasons. It logs each message once, for the node at hand."""
    from executorch.backends.apple.coreml.partition import coreml_partitioner

    support = coreml_partitioner._OperatorsSupportedForCoreMLBackend
    why: Why = {}
    current: list[Node] = []

    def ask(
        original: Callable[..., bool], checker: Any, submodules: Any, node: Node
    ) -> bool:
        current.append(node)
        try:
            return original(checker, submodules, node)
        finally:
            current.pop()

    def listen(original: Callable[..., None], checker: Any, message: str) -> None:
        if current:
            # "Skipping op for CoreML delegation because it is ...: aten.x"
            reason = message.partition(" because ")[2] or message
            reason = reason.removesuffix("  Overriding support.")
            why.setdefault(current[-1], reason.removesuffix("  Overriding op support."))
        original(checker, message)

    with (
        wrapped(support, "is_node_supported", ask),
        wrapped(support, "log_once", listen),
    ):
        yield why


_COREML = "executorch.backends.apple.coreml."


def _cannot_run() -> str:
    """Return why this machine can't run Core ML payloads, or "" if it can.

    ExecuTorch's macOS wheels include the Core ML delegate (tools/cmake/preset/pybind.cmake).
    """
    if sys.platform == "darwin":
        return ""
    return "only Apple's systems run Core ML"


ENTRIES = (
    Backend(
        name="coreml",
        backend_id="CoreMLBackend",
        summary="Apple's devices: neural engine, GPU, CPU",
        options=CoreMLOptions,
        lowering=Lowering(
            _make_partitioner,
            reasons=_reasons,
            control_flow=frozenset(),
            name_lists={"skip_ops_for_coreml_delegation": "operator"},
            takes_quantized=_takes_quantized,
            check=find_taken_over,
        ),
        quantization=Quantization(
            options=CoreMLQuantize,
            make_quantizer=lazy("pipeline.features.coreml.quantizer:Quantizer"),
        ),
        preprocessing=Preprocessing(
            details=f"{_COREML}compiler.coreml_preprocess:CoreMLBackend",
            joint=True,
            options_apart=_options_apart,
            specs_apart=_specs_apart,
            around=lazy("pipeline.features.coreml.reproducible:reproducible"),
        ),
        host=Host(distributions=(*EXECUTORCH, "cattrs", "coremltools", "protobuf")),
        execution=Execution(
            cannot_run=_cannot_run,
            elsewhere="Mac",
            check_payload=lazy("pipeline.features.coreml.payload:check_payload"),
        ),
    ),
)
