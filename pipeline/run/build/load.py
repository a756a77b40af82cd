"""Loads the programs and inputs of an action, and checks that they are still those planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch.export import ExportedProgram

from pipeline.config.models import MethodConfig
from pipeline.plan.actions import Action
from pipeline.plan.user_code import check_code
from pipeline.program.archive import load_example_inputs, load_program
from pipeline.program.input_files import check_file
from pipeline.program.inputs import InputSet, as_input_sets, load_inputs
from pipeline.program.sources import MethodSource
from pipeline.run.build.planned import QUANTIZED_ENTRY, find_archive
from pipeline.store.digest import Digest
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace


class Quantized(NamedTuple):
    """A quantized program as loaded from the store.

    Attributes:
        origins: where its nodes come from (`program.graphs.find_origins`).
        facts: `store.quantized.QUANTIZATION_FACTS`.
        divergence: how it differs from the float program before any rounding, in words; "" if it
            doesn't, or if that is unknown.
    """

    program: ExportedProgram
    origins: list[dict[str, int]]
    facts: Mapping[str, Any]
    divergence: str


def load_method(source: MethodSource, store: Store) -> ExportedProgram:
    """Load the program of a method, with large weights memory-mapped.

    Callers must use the program within `guard_sources`. Raises the same errors as
    `find_archive`.
    """
    archive = find_archive(source, store)
    return load_program(
        archive, source.entry, without_pickle=source.exported, mapped=True
    )


def load_quantized(action: Digest, method: str, store: Store) -> Quantized:
    """Load the result of a quantize action. Raises MissingBlobError."""
    if (entry := store.get(action)) is None:
        raise MissingBlobError(f"the quantized program of {method} is not in the store")
    archive = store.verified_path(entry.result["program"])
    program = load_program(archive, QUANTIZED_ENTRY, without_pickle=True)
    result = entry.result
    return Quantized(program, result["origins"], result["facts"], result["divergence"])


def load_examples(source: MethodSource, store: Store) -> list[InputSet]:
    """Load the example inputs of a method, from its archive or from its exporter's result."""
    if source.exported:
        return load_inputs(store.read(source.examples)) if source.examples else []
    inputs = load_example_inputs(source.archive, source.entry)
    return as_input_sets([inputs], "example") if inputs else []


def check_libraries(action: Action, workspace: Workspace) -> None:
    """Check that the operator libraries loaded into this process are those that were planned.

    Raises SourceError if one has changed.
    """
    key = action.key.get("measured", action.key)
    check_code("operators", key.get("operator_inputs", {}), workspace)


@contextmanager
def guard_files(
    action: Action, configs: Mapping[str, MethodConfig], root: Path
) -> Iterator[None]:
    """Check before and after the context that files named in methods' options are those planned.

    Raises SourceError if one has changed.
    """

    def check() -> None:
        for name, config in configs.items():
            planned = action.key["methods"][name].get("files", {})
            for place, contents in planned.items():
                for path, content in zip(config.files[place], contents, strict=True):
                    check_file(root, path, content)

    check()
    try:
        yield
    finally:  # even after an error: a changed file would explain it
        check()
