"""Makes ExecuTorch's config for edge programs from `edge` in a package config and its backends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import torch
from executorch.exir import EdgeCompileConfig

from pipeline.backends import Backend
from pipeline.config.edge import EdgeConfig
from pipeline.store.errors import PipelineError


def adapt_edge_config(settings: EdgeConfig, backends: Iterable[Backend]) -> EdgeConfig:
    """Return `settings` adapted to the backends that lower by passes.

    The operators that those passes need are preserved, and the validity check is off, since it
    knows none of the operators that the passes make.
    """
    # Upstream has no check for the operators that passes make.
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
    """Make ExecuTorch's config from `settings`.

    Args:
        operators: operators beyond Core ATen that backends take.

    Raises PipelineError for an unknown operator.
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
