"""Quantize: a method from its program to a quantized one in the store."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from torch.export import ExportedProgram

from pipeline.backends.workspace_files import located
from pipeline.compile.control_flow import count_float_operators
from pipeline.compile.quantize import Batches, Calibration, check_batches, quantize
from pipeline.plan.actions import Action, QuantizeInputs
from pipeline.plan.keys import CALIBRATION
from pipeline.program.archive import save_programs
from pipeline.program.graphs import find_origins
from pipeline.program.input_files import read_planned
from pipeline.program.inputs import InputSet, load_inputs
from pipeline.run.build.load import guard_files, load_examples, load_method
from pipeline.run.build.planned import QUANTIZED_ENTRY, guard_sources
from pipeline.run.stages import Stages
from pipeline.store.digest import Digest
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

_log = logging.getLogger(__name__)


def quantize_method(action: Action[QuantizeInputs], workspace: Workspace, stages: Stages) -> None:
    """Quantize the method of an action and record the result: an archive of the quantized program,
    which is lowered to the same bytes as the one in memory would be.

    Raises SourceError where the program or a calibration file can't be read or is not what was
    planned, and PipelineError where the inputs or the config don't fit the program.
    """
    with guard_sources([action.inputs.source], workspace.store):
        result = _quantize(action, workspace, stages)
    with stages.stage("store"):
        put = workspace.store.put_result
        put(action.key, result, stages.total, stages.seconds(), stages.peak)


def _quantize(
    action: Action[QuantizeInputs], workspace: Workspace, stages: Stages
) -> dict[str, Any]:
    source, config, store = action.inputs.source, action.inputs.config, workspace.store
    method, spec = str(action.method), located(action.inputs.spec, workspace.root)
    with stages.stage("load"):
        program = load_method(source, store)
        batches = _calibration_inputs(action, workspace, program) if spec.calibrates else []
        if spec.calibrates:
            check_batches(program, method, batches)
    with stages.stage("quantize"), guard_files(action, {method: config}, workspace.root):
        quantized = quantize(program, spec, batches, stages.tell)
    if floats := count_float_operators(quantized):
        _log.warning(
            "%s: its control flow is not quantized: %d of its operators compute in floating point",
            method,
            floats,
        )
    with stages.stage("store"):
        with store.writer() as file:
            save_programs({QUANTIZED_ENTRY: quantized}, file)
        origins = find_origins(quantized, program)
        return {"program": file.digest, "blobs": [file.digest], "origins": origins}


def _calibration_inputs(
    action: Action[QuantizeInputs], workspace: Workspace, program: ExportedProgram
) -> Calibration:
    """Return the inputs that a static quantization observes: those of files, else the model's own,
    else its examples."""
    source, most, store = action.inputs.source, action.inputs.spec.batches, workspace.store
    if files := action.inputs.config.files.get(CALIBRATION, ()):
        contents = action.key["methods"][str(action.method)]["calibration"]
        planned = zip(files, contents, strict=True)
        loads = [partial(read_planned, workspace.root, *each, program) for each in planned]
    else:
        loads = [partial(_load_batch, store, each) for each in source.batches]
    return Batches(loads, most) if loads else load_examples(source, store)[:most]


def _load_batch(store: Store, blob: Digest) -> list[InputSet]:
    return load_inputs(store.read(blob))
