"""Entries of Arm's backends, which share a partitioner and a quantizer: executorch/backends/arm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pipeline.backends import reasons
from pipeline.backends.entry import Backend, Lowering, Preprocessing, Quantization
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import QuantizeConfig
from pipeline.backends.workspace_files import named_files
from pipeline.features.arm.options import PASS_OPTIONS
from pipeline.store.digest import hash_bytes

if TYPE_CHECKING:
    from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

_ARM = "executorch.backends.arm."
# Their quantizers are subclasses of `TOSAQuantizer`.
_OF_ONE_QUANTIZER = frozenset({"ethos-u", "tosa", "vgf"})
# Contents of users' files, keyed by their names in compile specs.
FILES: dict[str, bytes] = {}


def arm_backend(
    name: str,
    stem: str,
    *,
    options: type[Options],
    quantize: type[QuantizeConfig],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    **fields: Any,
) -> Backend:
    """Return an entry with Arm's partitioner and quantizer.

    Each makes a compile spec from its options, including those of its passes.


    Args:
        stem: the prefix of the backend's class names; in lower case, its folder in
            `executorch.backends.arm`.
    """
    folder = _ARM + stem.lower()

    def make_partitioner(options: Any) -> Partitioner:
        from pipeline.features.arm.partitioner import make_partitioner

        # The first field names the device: `target` or `tosa_spec`.
        device = quantize.partitioners_own[0]
        hint = f"quantizer: {name}, {device}: {getattr(options, device)}"
        kind = resolve_name(f"{folder}.partitioner:{stem}Partitioner")
        return make_partitioner(kind, compile_spec(options), name, hint)

    def make_quantizer(config: Any) -> Quantizer:
        from pipeline.features.arm.quantizer import make_quantizer

        kind = resolve_name(f"{_ARM}quantizer.arm_quantizer:{stem}Quantizer")
        return make_quantizer(config, kind(compile_spec(config)))

    return Backend(
        name=name,
        backend_id=f"{stem}Backend",
        options=options,
        lowering=Lowering(
            make_partitioner=make_partitioner,
            reasons=reasons.reported_by(
                "executorch.exir.backend.utils:WhyNoPartitionReporter", "report_reject"
            ),
            control_flow=frozenset({"cond", "while_loop"}),
        ),
        quantization=Quantization(
            options=quantize, make_quantizer=make_quantizer, backends=_OF_ONE_QUANTIZER
        ),
        preprocessing=Preprocessing(
            details=f"{folder}.backend:{stem}Backend", around=around
        ),
        **fields,
    )


def _keep_file(path: str) -> str:
    """Store a file's content in `FILES` and return a name derived from it.

    The package contains this name, since it must not contain any path of this machine.
    """
    content = Path(path).read_bytes()
    name = f"{hash_bytes(content)}{Path(path).suffix}"
    FILES[name] = content
    return name


def compile_spec(options: Any) -> ArmCompileSpec:
    """Return the compile spec for the options of a partitioner or a quantizer.

    If no pass option is set, the spec keeps its default pass pipeline, as in a plain script.
    """
    from executorch.backends.arm.common import pipeline_config as passes

    kind = resolve_name(_ARM + options.spec)
    arguments: dict[str, Any] = {}
    for name in signature(kind).parameters:
        # None keeps the default of the installed release.
        value = getattr(options, name, None)
        if value is not None:
            arguments[name] = list(value) if isinstance(value, tuple) else value
    for name, paths in named_files(options).items():
        if name in arguments:
            arguments[name] = _keep_file(*paths)
    spec: ArmCompileSpec = kind(**arguments)
    if not options.model_dump(include=set(PASS_OPTIONS), exclude_defaults=True):
        return spec
    # Not a plain `ArmPassPipelineConfig()`: for U55 ExecuTorch changes its default softmax.
    config = spec._create_default_pipeline_config()
    if options.softmax is not None:
        config.softmax = passes.SoftmaxDecompositionConfig[options.softmax.upper()]
    config.leaky_relu = passes.LeakyReLULoweringConfig[options.leaky_relu.upper()]
    config.quantize_inf = passes.QuantizeInfConfig(
        options.quantize_neg_inf, options.quantize_pos_inf
    )
    spec.set_pass_pipeline_config(config)
    return spec
