"""Entries of Arm's backends, which have one partitioner and one quantizer:
executorch/backends/arm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pipeline.backends import reasons
from pipeline.backends.entry import Backend, Lowering, Preprocessing, Quantization
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import QuantizeConfig

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

_ARM = "executorch.backends.arm."
_QUANTIZER = f"{_ARM}quantizer.arm_quantizer:"


def arm_backend(
    name: str,
    folder: str,
    stem: str,
    *,
    options: type[Options],
    quantize: type[QuantizeConfig],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    **fields: Any,
) -> Backend:
    """Return an entry with Arm's partitioner and quantizer. Both make a compile spec, and pass it
    the options of their passes.

    Args:
        folder: where in `executorch.backends.arm` the backend is defined.
        stem: what the names of its classes begin with.
        options: has a method `make_spec`, as `quantize` has: the compile spec without passes.
    """
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
        ),
        quantization=Quantization(
            options=quantize,
            make_quantizer=make_quantizer,
        ),
        preprocessing=Preprocessing(details=f"{_ARM}{folder}.backend:{stem}Backend", around=around),
        **fields,
    )
