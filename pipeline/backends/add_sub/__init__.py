"""Additions and subtractions: the smallest complete backend, which others can be written after.

It has a partitioner, a compiler that makes text of a partition, and a runtime in Python that reads
it. docs/writing-a-backend.md goes the same way from nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.backends.entry import Backend, Sight, Why
from pipeline.backends.options import Options

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram

    from pipeline.backends.delegate_runtime import DelegateRuntime

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


def _make_runtime() -> DelegateRuntime:
    from pipeline.backends.add_sub.runtime import AddSubRuntime

    return AddSubRuntime()


# What the compiler reads of a node is its value's dtype and sizes and its debug handle. Which
# module and line it is from stands in errors only, and those are not kept.
_UNREAD = frozenset(
    {
        "custom",
        "desc",
        "eager_input_vals",
        "nn_module_stack",
        "original_aten",
        "source_fn_stack",
        "tensor_meta",
        "torch_fn",
    }
)


def _make_sight() -> Sight:
    from pipeline.backends.add_sub.text import with_handles

    return Sight(names_count=lambda program: False, unread=_UNREAD, remap=with_handles)


@contextmanager
def _reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """The compiler is asked about what the partitioner left."""
    from pipeline.backends.add_sub.partitioner import refusals

    found: Why = {}
    yield found
    found.update(refusals(program))


ENTRIES = (
    Backend(
        name="add_sub",
        backend_id=BACKEND_ID,
        preprocess="pipeline.backends.add_sub.compiler:preprocess",
        summary="additions and subtractions, run in Python: an example",
        options=AddSubOptions,
        make_partitioner=_make_partitioner,
        make_runtime=_make_runtime,
        make_sight=_make_sight,
        names_count=False,
        reasons=_reasons,
        looks_into=frozenset({"cond", "map_impl", "scan"}),
        beyond={"whole": "of this package's own partitioner"},
    ),
)
