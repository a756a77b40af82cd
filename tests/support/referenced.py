"""Exported programs and their references, judged as in a build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.config.validation import ValidateConfig
from pipeline.features.references.record import record_references
from pipeline.features.references.recordings import Recording, load_recording
from pipeline.features.references.verdict import ReferenceJudge
from pipeline.program.inputs import InputSet, as_input_sets
from pipeline.validate.budget import Budget
from pipeline.validate.method_result import MethodValidation
from tests.support.bench import REPOSITORY


def record(
    references: Mapping[str, Callable[..., Any]],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, list[Any]] | None = None,
) -> dict[str, Recording]:
    """Record references on `examples`, or on the arguments of the exports."""
    sets: dict[str, Sequence[InputSet]] = {}
    for name, program in programs.items():
        given = (examples or {}).get(name, [program.example_inputs])
        sets[name] = as_input_sets([tuple(each) for each in given], "example")
    defaults = torch.get_default_dtype(), torch.get_default_device()
    recordings = record_references(references, programs, sets, *defaults, REPOSITORY)
    return {name: load_recording(each) for name, each in recordings.items()}


def judge(
    recordings: Mapping[str, Recording],
    programs: Mapping[str, ExportedProgram],
    shares_state: bool = True,
    is_random: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, MethodValidation]:
    """Judge recordings as validation does with these settings."""
    config = ValidateConfig(random=is_random, **(settings or {}))
    results = {}
    for name, recording in recordings.items():
        results[name] = MethodValidation(name)
        judge = ReferenceJudge(results[name], programs, shares_state, config, Budget())
        judge.judge(recording)
        judge.conclude()
    return results
