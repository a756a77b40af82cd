"""Collects the calls of a validation, and bundles them with a package that passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.features.bundles.bundle import BundleCases, bundle, describe_bundle
from pipeline.run.prove.measuring import Measuring
from pipeline.run.prove.subject import Subject
from pipeline.run.stages import Stages
from pipeline.store.digest import Digest
from pipeline.validate.results import Validation


class BundleMeasuring(Measuring):
    """Makes a package's bundled program if the config asks for it and all methods are validated."""

    def __init__(self, subject: Subject, stages: Stages) -> None:
        super().__init__(subject, stages)
        self._cases = BundleCases(subject.settings.bundle_limit)

    @property
    def keeps_calls(self) -> bool:
        return bool(self.subject.settings.bundle and "only" not in self.subject.key)

    def keep_call(
        self, method: str, origin: str, inputs: Sequence[Any], expected: Sequence[Any]
    ) -> None:
        self._cases.keep(method, origin, inputs, expected)

    def before_keeping(
        self, record: dict[str, Any], validation: Validation
    ) -> list[Digest]:
        if not self.keeps_calls:
            return []
        pte = self.subject.pte
        with self.stages.stage("bundle"), self.subject.workspace.store.writer() as file:
            file.write(bundle(pte, self._cases))
        record["bundle"] = {
            "file": f"{pte.stem}.bpte",
            "size": file.size,
            "digest": file.digest,
            "methods": describe_bundle(self._cases, validation.methods),
        }
        return [file.digest]
