"""The calls that measure a quantized method: its examples, and the float program's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.config.validation import ValidateConfig
from pipeline.features.sensitivity.search import Noise
from pipeline.features.sensitivity.switches import measure_noise
from pipeline.plan.actions import Action
from pipeline.program.eager import Source
from pipeline.program.input_files import read_examples
from pipeline.program.inputs import InputSet, load_inputs
from pipeline.program.operator_libraries import load_libraries
from pipeline.program.sources import MethodSource
from pipeline.run.build.load import load_examples, load_method, load_quantized
from pipeline.run.build.planned import guard_sources
from pipeline.run.worker_process import import_libraries
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import Workspace


def prepare(
    action: Action[Any],
    validation: ValidateConfig,
    workspace: Workspace,
    most: int | None = None,
) -> tuple[Any, Any, list[InputSet], list[list[Any]]]:
    """Load a method in float and quantized, its examples, and the float program's outputs."""
    method, source = str(action.method), action.inputs.source
    calls = load_calls(source, method, action.libraries, validation, workspace, most)
    program, examples, expected = calls
    with guard_sources([source], workspace.store):
        quantized = load_quantized(action.digest, method, workspace.store)
    return program, quantized, examples, expected


def load_calls(
    source: MethodSource,
    method: str,
    libraries: Sequence[str],
    validation: ValidateConfig,
    workspace: Workspace,
    most: int | None = None,
) -> tuple[Any, list[InputSet], list[list[Any]]]:
    """Load a method, a selection of its examples, and the flat outputs of each.

    Args:
        libraries: libraries of the method's operators.
        most: maximum number of examples, evenly spaced among all; None for all.

    Raises:
        PipelineError: the method has no examples.
    """
    import_libraries(False)
    load_libraries(libraries, workspace.root)
    with guard_sources([source], workspace.store):
        program = load_method(source, workspace.store)
        examples = _load_inputs(source, method, validation, workspace, program)
        if most is not None and len(examples) > most:
            # Evenly spaced, since neighbours in a recording are often alike.
            examples = [examples[len(examples) * n // most] for n in range(most)]
        float_source = Source(program)
        expected = []
        for inputs in examples:
            float_source.reset()
            expected.append(float_source.run(inputs))
    return program, examples, expected


def _load_inputs(
    source: MethodSource,
    method: str,
    validation: ValidateConfig,
    workspace: Workspace,
    program: Any,
) -> list[InputSet]:
    """Return the examples of a method, which its quantization is also judged on.

    Raises PipelineError if it has none.
    """
    limits = validation.methods.get(method)
    if limits is not None and limits.examples:
        files = [(name, workspace.find_data(name)) for name in limits.examples]
        return read_examples(workspace.root, {method: files}, {method: program})[method]  # type: ignore[dict-item]
    # Inputs that only served the export may have nothing right but their shapes.
    examples = (
        [] if source.examples_of_export else load_examples(source, workspace.store)
    )
    if not examples and source.calibration:
        examples = load_inputs(workspace.store.read(source.calibration))
    if not examples:
        raise PipelineError(
            f"{method}: has no examples to measure on; add example_inputs(method) to the exporter, "
            f"or name files: `validate: {{methods: {{{method}: {{examples: [inputs.npz]}}}}}}`"
        )
    return examples


def compare_calls(
    run: Callable[[InputSet], list[Any]],
    examples: Sequence[InputSet],
    expected: Sequence[Sequence[Any]],
) -> Noise:
    """Return the noise-to-signal share of each floating-point output, call by call."""
    shares = []
    for inputs, values in zip(examples, expected, strict=True):
        for actual, value in zip(run(inputs), values, strict=True):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                shares.append(measure_noise(actual, value))
    if not shares:
        raise PipelineError("it returns no tensor in floating point")
    return tuple(shares)
