"""Additions and subtractions: the smallest complete backend, which others can be written after.

docs/writing-a-backend.md goes the same way from nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.backends.entry import Backend, Execution, Lowering, Preprocessing, lazy
from pipeline.backends.options import Options

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner

BACKEND_ID = "AddSubBackend"


class AddSubOptions(Options):
    """Options of `AddSubPartitioner`."""

    whole: bool = Field(
        default=False,
        description="Take every operator, so that a method with others than additions, "
        "subtractions and casts is refused, with the line of its source. By default those are "
        "left out.",
    )


def _make_partitioner(options: AddSubOptions) -> Partitioner:
    from pipeline.backends.add_sub.partitioner import AddSubPartitioner

    return AddSubPartitioner(BACKEND_ID, options.whole)


ENTRIES = (
    Backend(
        name="add_sub",
        backend_id=BACKEND_ID,
        summary="additions and subtractions, run in Python: an example",
        options=AddSubOptions,
        lowering=Lowering(
            make_partitioner=_make_partitioner,
            reasons=lazy("pipeline.backends.add_sub.partitioner:reasons"),
            control_flow=frozenset({"cond", "map_impl", "scan"}),
        ),
        preprocessing=Preprocessing(
            function="pipeline.backends.add_sub.compiler:preprocess", names_count=False
        ),
        execution=Execution(make_runtime=lazy("pipeline.backends.add_sub.runtime:AddSubRuntime")),
    ),
)
