"""Operators by name in options of partitioners. Imports no torch until names are looked up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from pipeline.backends.options import rule
from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from executorch.exir.dialects.edge._ops import EdgeOpOverload


def _check_name(name: str) -> str:
    parts = name.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        raise rule("must be an operator with its overload: aten.add.Tensor")
    return name


OperatorName = Annotated[
    str,
    AfterValidator(_check_name),
    Field(json_schema_extra={"pattern": r"^[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*$"}),
]


def edge_operators(
    names: Iterable[str], option: str, delegated: Iterable[str] = ()
) -> list[EdgeOpOverload]:
    """Return the operators of the edge dialect of these names.

    Raises:
        PipelineError: some are not installed; the message names the nearest of `delegated`.
    """
    found = {name: _find(name) for name in names}
    unknown = [name for name, operator in found.items() if operator is None]
    if unknown:
        known = sorted(delegated)
        hint = f"; {did_you_mean(unknown[0], known)}" if known else ""
        raise PipelineError(f"{option}: no operator {', '.join(unknown)} is installed{hint}")
    return [operator for operator in found.values() if operator is not None]


def _find(name: str) -> EdgeOpOverload | None:
    from executorch.exir.dialects._ops import ops

    namespace, packet, overload = name.split(".")
    try:
        return getattr(getattr(getattr(ops.edge, namespace), packet), overload)
    except AttributeError:
        return None
