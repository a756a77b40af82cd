"""The base class of a feature's part in measuring a package (`moments.Feature.measuring`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.devices.interface import PackageFiles
from pipeline.program.inputs import InputSet
from pipeline.run.prove.subject import Subject
from pipeline.run.stages import Stages
from pipeline.store.digest import Digest
from pipeline.validate.budget import Budget
from pipeline.validate.method_result import MethodValidation
from pipeline.validate.references import OpenLane
from pipeline.validate.results import Validation


@dataclass
class Measurement:
    """A package whose methods were run, and the findings of features about it.

    Attributes:
        subject: the package.
        validation: the outcome of the run.
        files: the opened package.
        running: the share of `budget` that was for the run.
        budget: the time for the whole measurement.
        open_lane: opens the object that runs the programs the package was compared with.
        method_facts: additional fields of the record, by method.
        shown: by name, files that reproduce the failures.
    """

    subject: Subject
    validation: Validation
    files: PackageFiles
    running: Budget
    budget: Budget
    open_lane: OpenLane
    method_facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    shown: dict[str, bytes] = field(default_factory=dict)


class Measuring:
    """One feature's part in one measurement; subclasses override only the methods they need."""

    def __init__(self, subject: Subject, stages: Stages) -> None:
        self.subject, self.stages = subject, stages

    @property
    def open_lane(self) -> OpenLane | None:
        """Opens what runs the programs that a package is compared with; None for the default."""
        return None

    @property
    def keeps_calls(self) -> bool:
        """Whether `keep_call` should be called, at the cost of a copy of all outputs."""
        return False

    def keep_call(
        self, method: str, origin: str, inputs: Sequence[Any], expected: Sequence[Any]
    ) -> None:
        """Take a call from the initial state: its flat inputs and the source's flat outputs."""

    @property
    def watches_calls(self) -> bool:
        """Whether `watch_call` should be called."""
        return False

    def watch_call(
        self, result: MethodValidation, inputs: InputSet, expected: Sequence[Any]
    ) -> None:
        """Take a judged call: the last run of `result`, its inputs, and the expected flat outputs.

        The expected outputs are those of the program that was lowered.
        """

    def after_run(self, measurement: Measurement) -> None:
        """Inspect the package after its methods were run, while it is still open."""

    def add_verdicts(self, measurement: Measurement) -> None:
        """Add verdicts to the results of methods.

        Called after all features have inspected the package and its files were found unchanged.
        """

    def before_keeping(
        self, record: dict[str, Any], validation: Validation
    ) -> list[Digest]:
        """Add to the record of a package that passed; return the blobs that the record names."""
        return []
