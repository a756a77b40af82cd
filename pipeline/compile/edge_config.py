"""Make ExecuTorch's edge config from a package config's `edge` and the backends' requirements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import torch
from executorch.exir import EdgeCompileConfig

from pipeline.backends import Backend
from pipeline.config.edge import EdgeConfig
from pipeline.store.errors import PipelineError


def adapt_edge_config(settings: EdgeConfig, backends: Iterable[Backend]) -> EdgeConfig:
    """Return `settings` adapted to backends that lower by passes.

    The operators that these backends need whole are preserved. The validity check is off, since it
    doesn't know the operators that passes create.
    """
    # Nothing upstream checks the operators that passes create.
    lowerings = []
    for backend in backends:
        if backend.lowering.make_passes is not None:
            lowerings.append(backend.lowering)
    if not lowerings:
        return settings
    preserved = list(settings.preserve_ops or ())
    for lowering in lowerings:
        preserved += lowering.preserve_ops
    return settings.model_copy(
        update={
            "preserve_ops": tuple(dict.fromkeys(preserved)),
            "check_ir_validity": False,
        }
    )


def make_edge_config(
    settings: EdgeConfig, operators: Sequence[str] = ()
) -> EdgeCompileConfig:
    """Return ExecuTorch's config for `settings`.

    Args:
        operators: operators beyond Core ATen that the backends accept.

    Raises:
        PipelineError: this torch doesn't know an operator.
    """
    return EdgeCompileConfig(
        _check_ir_validity=settings.check_ir_validity,
        _skip_dim_order=settings.skip_dim_order,
        _core_aten_ops_exception_list=[
            _operator(name)
            for name in dict.fromkeys(
                [*(settings.core_aten_ops_exceptions or ()), *operators]
            )
        ],
        preserve_ops=[_operator(name) for name in settings.preserve_ops or ()],
    )


def _operator(name: str) -> torch._ops.OpOverload:
    try:
        operator: torch._ops.OpOverload = attrgetter(name)(torch.ops)
    except AttributeError as error:
        raise PipelineError(f"edge: no operator '{name}' in this torch") from error
    return operator
