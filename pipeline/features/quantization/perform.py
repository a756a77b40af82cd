"""Performs quantize actions: a method's program becomes a quantized one in the store."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from torch.export import ExportedProgram

from pipeline.backends.workspace_files import located
from pipeline.compile.control_flow import count_float_operators
from pipeline.features.quantization.calibration import (
    calibration_remedy,
    lacks_calibration,
)
from pipeline.features.quantization.facts import describe_quantization
from pipeline.features.quantization.kind import QuantizeInputs
from pipeline.features.quantization.quantize import (
    Batches,
    Calibration,
    QuantizationNotes,
    check_batches,
    quantize,
)
from pipeline.features.quantization.warnings import describe_divergence, find_warnings
from pipeline.plan.actions import Action
from pipeline.plan.kinds.parts import CALIBRATION
from pipeline.program.archive import save_programs
from pipeline.program.graphs import find_origins
from pipeline.program.input_files import read_planned
from pipeline.program.inputs import InputSet, load_inputs
from pipeline.program.random_inputs import generate_inputs
from pipeline.run.build.load import guard_files, load_examples, load_method
from pipeline.run.build.planned import QUANTIZED_ENTRY, guard_sources
from pipeline.run.stages import Stages
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.quantized import CalibrationSource
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

_log = logging.getLogger(__name__)
GENERATED_INPUTS = 8  # if `batches` doesn't set a number


def quantize_method(
    action: Action[QuantizeInputs], workspace: Workspace, stages: Stages
) -> None:
    """Quantize the method of an action and record the result.

    The result is an archive of the quantized program, which is lowered to the same bytes as the
    program in memory would be.

    Raises:
        SourceError: the program or a calibration file can't be read, or isn't the one that was
            planned.
        PipelineError: the inputs or the config don't fit the program.
    """
    with guard_sources([action.inputs.source], workspace.store):
        result = _quantize(action, workspace, stages)
    with stages.stage("store"):
        put = workspace.store.put_result
        put(action.key, result, stages.total, stages.seconds(), stages.peak)


def _quantize(
    action: Action[QuantizeInputs], workspace: Workspace, stages: Stages
) -> dict[str, Any]:
    source, store, method = action.inputs.source, workspace.store, str(action.method)
    spec = located(action.inputs.spec, workspace.root)
    notes = QuantizationNotes()
    with stages.stage("load"):
        program = load_method(source, store)
        calibration_source, inputs = _calibration(action, workspace, program)
        if spec.calibrates:
            check_batches(program, method, inputs)
    with (
        stages.stage("quantize"),
        guard_files(action, action.inputs.configs, workspace.root),
    ):
        quantized = quantize(program, spec, inputs, stages.tell, notes, stages.step)
    with stages.stage("store"):
        with store.writer() as file:
            save_programs({QUANTIZED_ENTRY: quantized}, file)
        origins = find_origins(quantized, program)
        calibration = {"inputs": len(inputs), "source": calibration_source}
        facts = describe_quantization(
            program, quantized, spec, origins, calibration, notes.observers
        )
        facts["warnings"] = [
            *find_warnings(facts, notes.prepared, count_float_operators(quantized))
        ]
        for warning in facts["warnings"]:
            _log.warning("%s: %s", method, warning)
        divergence = ""
        if notes.prepared is not None and notes.prepared["agrees"] is False:
            divergence = describe_divergence(notes.prepared)
        return {
            "program": file.digest,
            "blobs": [file.digest],
            "origins": origins,
            "facts": facts,
            "prepared": notes.prepared,
            "divergence": divergence,
        }


def _calibration(
    action: Action[QuantizeInputs], workspace: Workspace, program: ExportedProgram
) -> tuple[CalibrationSource, Calibration]:
    """Return the inputs that a static quantization observes, and their source.

    The first of these that exists counts: calibration files, the model's own calibration inputs,
    its examples. Generated inputs are used only if the config asks for them.

    Raises PipelineError if there are no inputs.
    """
    spec, source, store = action.inputs.spec, action.inputs.source, workspace.store
    if not spec.calibrates:
        return "none", []
    if spec.generates_calibration:
        count = spec.batches or GENERATED_INPUTS
        examples = load_examples(source, store)
        return "generated", generate_inputs(program, count, 0, examples)
    if files := action.inputs.configs[str(action.method)].files.get(CALIBRATION, ()):
        contents = action.key["methods"][str(action.method)]["calibration"]
        planned = zip(files, contents, strict=True)
        loads = [
            partial(read_planned, workspace.root, *file, program) for file in planned
        ]
        return "files", Batches(loads, spec.batches)
    if source.batches:
        loads = [partial(_load_batch, store, batch) for batch in source.batches]
        return "calibration_inputs", Batches(loads, spec.batches)
    if lacks_calibration(spec, source):
        raise PipelineError(
            f"{action.method}: static quantization observes calibration inputs, but the model "
            f"provides none; {calibration_remedy(spec, source)}"
        )
    return "examples", load_examples(source, store)[: spec.batches]


def _load_batch(store: Store, blob: Digest) -> list[InputSet]:
    return load_inputs(store.read(blob))
