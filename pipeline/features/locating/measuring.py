"""Examines failed methods, and writes reproductions of their failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING

from executorch.exir.lowered_backend_module import LoweredBackendModule

from pipeline.compile.emission import emit_lowered
from pipeline.compile.ranges import kernel_guards
from pipeline.config.validation import Limits
from pipeline.devices.interface import PackageFiles
from pipeline.features.locating.case import Evidence, Located
from pipeline.features.locating.locate import locate_failures
from pipeline.features.locating.reproduce import make_reproduction
from pipeline.moments import call_all
from pipeline.run.build.compile import lower_request
from pipeline.run.build.compile_requests import make_request
from pipeline.run.prove.measuring import Measurement, Measuring
from pipeline.run.prove.subject import LoweredMethod, Subject
from pipeline.store.errors import PipelineError
from pipeline.validate.budget import OF_LOCATING, Budget
from pipeline.validate.method_result import MethodValidation

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_log = logging.getLogger(__name__)


class LocatingMeasuring(Measuring):
    """Adds culprits to the records of failed methods, and writes files that show the failures."""

    def after_run(self, measurement: Measurement) -> None:
        subject = measurement.subject
        validation = measurement.validation
        if not validation.failures:
            return
        with self.stages.stage("locate"):
            # Locating gets its full share, however long the last call took.
            share = subject.settings.budget * OF_LOCATING
            budget = Budget(max(measurement.budget.left, share))
            evidence = collect_evidence(subject, measurement.files, budget)
            located = locate_failures(evidence, validation, subject.examples, budget)
        for method, cause in located.items():
            facts = measurement.method_facts.setdefault(method, {})
            facts["culprits"] = list(cause.culprits)
            facts["culprit_notes"] = list(cause.notes)
        for result in validation.methods:
            if result.method in located:
                measurement.shown |= reproductions(
                    str(subject.action.package),
                    sorted(subject.key["files"]),
                    {**subject.programs, **_find_quantized(result, subject)},
                    {result.method: result.failing_limits},
                    {result.method: located[result.method]},
                    subject.action.libraries,
                )


def collect_evidence(subject: Subject, files: PackageFiles, budget: Budget) -> Evidence:
    """Return the known facts about a package, to find out where it fails.

    Args:
        budget: the remaining time, which compiling again must fit into.
    """
    # Cached, so each method has one program, with the nodes that its delegates are traced to.
    load_lowered = cache(subject.load_lowered)
    return Evidence(
        files,
        subject.programs,
        subject.settings.select_limits,
        load_lowered,
        cache(partial(_lower_again, subject, budget, load_lowered)),
        subject.workspace.root,
    )


def _lower_again(
    subject: Subject,
    budget: Budget,
    load_lowered: Callable[[str], LoweredMethod],
    method: str,
) -> list[LoweredBackendModule]:
    """Lower a method once more, without a cache, and return its delegates.

    Raises:
        PipelineError: there is no time for it, or no feature that records emissions.
    """
    unit = subject.find_facts(method)["unit"]
    inputs = subject.action.inputs
    compiled = subject.workspace.store.get(subject.manifest["objects"][unit]["action"])
    if compiled is not None and compiled.seconds > budget.left:
        share = f"validate.budget leaves {budget.left:.0f} s for it"
        raise PipelineError(f"compiling it took {compiled.seconds:.0f} s, and {share}")
    names = [
        name for name in inputs.sources if subject.find_facts(name)["unit"] == unit
    ]
    programs = {name: load_lowered(name).program for name in names}
    configs = {name: inputs.config.methods[name] for name in names}
    beside = inputs.config.delegates_beside(names)
    root = subject.workspace.root
    with kernel_guards(configs[method].edge.keep_ranges):
        request = make_request(programs, configs, inputs.config.emit, root, beside)
        lowered = lower_request(request, None)
        with ExitStack() as stack:
            emissions = []
            for context in call_all("record_emission"):
                emissions.append(stack.enter_context(context))
            emit_lowered(lowered, request.make_emission)
    if not emissions:
        raise PipelineError('this installation has no feature "instructions"')
    delegates: list[LoweredBackendModule] = emissions[0].delegates(method)
    return delegates


def _find_quantized(
    result: MethodValidation, subject: Subject
) -> dict[str, ExportedProgram]:
    """Return the quantized programs that reproduce a failure, or none to compare with float ones.

    A float method is compared on the state that quantized programs write.

    Raises:
        MissingBlobError: the store has lost a program.
    """
    abouts = {failure["about"] for failure in result.failures}
    is_float = result.limits_from != "quantized"
    if not (result.fails_quantized or (is_float and "" in abouts)):
        return {}
    return {name: method.program for name, method in subject.quantized.items()}


def reproductions(
    package: str,
    names: Sequence[str],
    programs: Mapping[str, ExportedProgram],
    limits: Mapping[str, Sequence[Limits]],
    located: Mapping[str, Located],
    operators: Sequence[str] = (),
) -> dict[str, bytes]:
    """Return the files that reproduce each failure, by their path in the package's folder."""
    files: dict[str, bytes] = {}
    for method, cause in located.items():
        if not cause.calls:
            continue
        try:
            files |= make_reproduction(
                package, method, names, programs, limits[method], cause, operators
            )
        except Exception as error:  # it must not hide the failure to be reproduced
            _log.warning("%s: no reproduce.py: %s", method, error)
    return files
