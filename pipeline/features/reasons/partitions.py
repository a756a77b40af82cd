"""Follows a configured partitioner, to learn why it leaves nodes and which names it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.compile.module_filter import FilteredPartitioner
from pipeline.features.reasons.name_lists import look_up_names
from pipeline.features.reasons.reasons import note_reasons, record_reasons


@contextmanager
def follow_partition(
    partitioner: FilteredPartitioner, program: ExportedProgram
) -> Iterator[Callable[[ExportedProgram], None]]:
    """Look up the names in a partitioner's options, and gather why it leaves nodes.

    Yields the function that records the reasons in the tagged program.
    """
    config = partitioner.config
    if config is None:
        backend = None
    else:
        backend = config.backend
        partitioner.listed = look_up_names(config, program)
    with record_reasons(backend, partitioner.inner, program) as why:

        def note(tagged: ExportedProgram) -> None:
            outside: dict[Node, str] = {}
            if partitioner.selection is not None:
                outside.update(partitioner.selection.describe_outside(tagged))
            note_reasons(backend, tagged, why, outside)

        yield note
