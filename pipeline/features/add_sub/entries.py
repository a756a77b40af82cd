"""Additions and subtractions: the smallest complete backend, and a template for others.
docs/guides/writing-a-backend.md builds it from scratch."""

from __future__ import annotations

from pipeline.backends.entry import Backend, Execution, Lowering, Preprocessing, lazy
from pipeline.backends.options import NoOptions

_HERE = "pipeline.features.add_sub."


ENTRIES = (
    Backend(
        name="add_sub",
        backend_id="AddSubBackend",
        summary="An example: additions and subtractions that run in Python",
        options=NoOptions,
        lowering=Lowering(lambda _: lazy(f"{_HERE}partitioner:AddSubPartitioner")()),
        preprocessing=Preprocessing(
            function=f"{_HERE}compiler:preprocess", names_count=False
        ),
        execution=Execution(make_runtime=lazy(f"{_HERE}runtime:AddSubRuntime")),
    ),
)
