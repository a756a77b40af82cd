"""Explains that an exporter calls an operator of a library that nothing has loaded."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.program.operator_libraries import likely_library

_MOST_CHARACTERS = 300  # of an operator's name


def explain_missing(error: AttributeError) -> str:
    """Explain that an exporter asked `torch.ops` for an operator that is missing.

    Returns "" for any other error.
    """
    owner: Any = error.obj
    if isinstance(owner, torch._ops._OpNamespace):
        name = f"{owner.name}.{error.name}"
    elif isinstance(owner, torch._ops.OpOverloadPacket):
        packet = owner._qualified_op_name.replace("::", ".")
        name = f"{packet}.{error.name}"
    else:
        return ""
    library = likely_library(name)
    example = ""
    if library:
        example = f", as {library},"
    return (
        f"calls the operator {name[:_MOST_CHARACTERS]}, which no imported module registers; "
        f"import the module that does{example} in the exporter, or name it in `operators` of "
        "[tool.pte-pipeline]"
    )
