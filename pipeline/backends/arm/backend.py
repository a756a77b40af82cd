"""Entries of Arm's backends, which have one partitioner and one quantizer:
executorch/backends/arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline.backends import reasons
from pipeline.backends.entry import Backend, Constructor, Lowering, Preprocessing, Quantization
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import QuantizeConfig

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

_ARM = "executorch.backends.arm."
_QUANTIZER = f"{_ARM}quantizer.arm_quantizer:"
_SCHEME = {"per_channel": "is_per_channel", "dynamic": "is_dynamic"}
_QAT = {"is_qat": "programs come here trained"}
_MADE = "made of the other options"
_PASSES = (
    Constructor(
        f"{_ARM}common.pipeline_config:ArmPassPipelineConfig",
        left_out={"quantize_inf": "made of quantize_neg_inf and quantize_pos_inf"},
        defaults={"softmax": "stable for the targets that have no other"},
    ),
    Constructor(
        f"{_ARM}common.pipeline_config:QuantizeInfConfig",
        renamed={"quantize_neg_inf": "neg_inf", "quantize_pos_inf": "pos_inf"},
    ),
)
_SCHEMES = (
    Constructor(f"{_QUANTIZER}TOSAQuantizer.set_io", renamed={"io": "quantization_config"}),
    Constructor(f"{_QUANTIZER}get_symmetric_quantization_config", renamed=_SCHEME, left_out=_QAT),
    Constructor(
        f"{_QUANTIZER}get_symmetric_a16w8_quantization_config",
        renamed={**_SCHEME, "eps": "epsilon"},
        left_out=_QAT,
    ),
)


def arm_backend(
    name: str,
    folder: str,
    stem: str,
    *,
    options: type[Options],
    quantize: type[QuantizeConfig],
    tools: Sequence[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
    spec_parameter: str = "compile_spec",
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    **fields: Any,
) -> Backend:
    """Return an entry with Arm's partitioner and quantizer. Both make a compile spec, and pass it
    the options of their passes.

    Args:
        folder: where in `executorch.backends.arm` the backend is defined.
        stem: what the names of its classes begin with.
        options: has a method `make_spec`, as `quantize` has: the compile spec without passes.
        tools: parameters of the compile spec that the quantizer has no options for.
        defaults: as in `Constructor`, of the compile spec.
        spec_parameter: the quantizer's parameter for the compile spec.
    """
    spec = f"{_ARM}{folder}.compile_spec:{stem.title() if stem.isupper() else stem}CompileSpec"
    partitioner = f"{_ARM}{folder}.partitioner:{stem}Partitioner"
    quantizer = f"{_QUANTIZER}{stem}Quantizer"

    def make_partitioner(options: Any) -> Partitioner:
        from pipeline.backends.arm.partitioner import make_partitioner

        return make_partitioner(
            options, name, quantize.partitioners_own[0], resolve_name(partitioner)
        )

    def make_quantizer(config: Any) -> Quantizer:
        from pipeline.backends.arm.quantizer import make_quantizer

        return make_quantizer(config, resolve_name(quantizer))

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
            constructors=(
                Constructor(spec, defaults=defaults),
                *_PASSES,
                Constructor(
                    partitioner, left_out={"compile_spec": _MADE, "additional_checks": "objects"}
                ),
            ),
        ),
        quantization=Quantization(
            options=quantize,
            make_quantizer=make_quantizer,
            constructors=(
                Constructor(
                    spec, left_out=dict.fromkeys(tools, "for what compiles it"), defaults=defaults
                ),
                *_PASSES,
                Constructor(
                    quantizer,
                    left_out={
                        spec_parameter: _MADE,
                        "use_composable_quantizer": "the other one is deprecated",
                    },
                ),
                *_SCHEMES,
            ),
            beyond={"activations": "says which function makes the configuration"},
        ),
        preprocessing=Preprocessing(details=f"{_ARM}{folder}.backend:{stem}Backend", around=around),
        **fields,
    )
