"""Additions and subtractions: the smallest complete backend, which others can be written after.

docs/writing-a-backend.md goes the same way from nothing.
"""

from __future__ import annotations

from pipeline.backends.entry import Backend, Execution, Lowering, Preprocessing, lazy
from pipeline.backends.options import Options

_HERE, _ID = "pipeline.backends.add_sub.", "AddSubBackend"


class AddSubOptions(Options):
    """Options of `AddSubPartitioner`."""

    whole: bool = False
    """Take every operator, so that a method with others than additions, subtractions and casts is
    refused, with the line of its source. By default those are left out."""


ENTRIES = (
    Backend(
        name="add_sub",
        backend_id=_ID,
        summary="additions and subtractions, run in Python: an example",
        options=AddSubOptions,
        lowering=Lowering(
            make_partitioner=lambda options: lazy(f"{_HERE}partitioner:AddSubPartitioner")(
                _ID, options.whole
            ),
            reasons=lazy(f"{_HERE}partitioner:reasons"),
            control_flow=frozenset({"cond", "map_impl", "scan"}),
        ),
        preprocessing=Preprocessing(function=f"{_HERE}compiler:preprocess", names_count=False),
        execution=Execution(make_runtime=lazy(f"{_HERE}runtime:AddSubRuntime")),
    ),
)
