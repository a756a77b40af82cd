"""What features do while a package is measured: the base class of `moments.Feature.measuring`."""

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
    """A package whose methods were run, and what features found out about it.

    Attributes:
        subject: the package.
        validation: what came of running it.
        files: the package, opened.
        running: the time that was for running it; `budget` is all of it.
        open_lane: what runs the programs that it was compared with.
        method_facts: by method, further fields of its record.
        shown: files that show again what failed, by name.
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
    """One feature, while one package is measured; each method may be left as it is here."""

    def __init__(self, subject: Subject, stages: Stages) -> None:
        self.subject, self.stages = subject, stages

    @property
    def open_lane(self) -> OpenLane | None:
        """What runs the programs that a package is compared with; None for the usual."""
        return None

    @property
    def keeps_calls(self) -> bool:
        """Whether `keep_call` is to be called, which costs a copy of all outputs."""
        return False

    def keep_call(
        self, method: str, origin: str, inputs: Sequence[Any], expected: Sequence[Any]
    ) -> None:
        """Take a call from the initial state: its flat inputs, and what the source gives."""

    @property
    def watches_calls(self) -> bool:
        """Whether `watch_call` is to be called."""
        return False

    def watch_call(
        self, result: MethodValidation, inputs: InputSet, expected: Sequence[Any]
    ) -> None:
        """Take a call that was judged: the last run of `result`, its inputs, and the flat outputs
        of the program that was lowered."""

    def after_run(self, measurement: Measurement) -> None:
        """Look at the package after its methods were run, while it is still open."""

    def add_verdicts(self, measurement: Measurement) -> None:
        """Add other verdicts to the results of methods, after all features have looked at the
        package and its files were found unchanged."""

    def before_keeping(
        self, record: dict[str, Any], validation: Validation
    ) -> list[Digest]:
        """Add to the record of a package that passed; return the blobs that the record names."""
        return []
