"""Compares exported programs with their references, which ran with the export or elsewhere."""

from __future__ import annotations

from pipeline.config.models import PackageConfig
from pipeline.features.references.golden import read_golden
from pipeline.features.references.recordings import load_recording
from pipeline.features.references.verdict import ReferenceJudge
from pipeline.plan.shared_state import says_sharing
from pipeline.program.input_files import check_file
from pipeline.run.prove.call_times import timed_calls
from pipeline.run.prove.measuring import Measurement, Measuring
from pipeline.run.prove.subject import Subject
from pipeline.store.errors import PipelineError, SourceError
from pipeline.validate.method_result import MethodValidation


class ReferenceMeasuring(Measuring):
    """Adds a verdict on the export to each method that has a reference."""

    def add_verdicts(self, measurement: Measurement) -> None:
        """Judge the exports of the requested methods, even if this machine can't run the package.

        Raises SourceError if a file of recorded outputs changed during the build.
        """
        subject = self.subject
        counts = counts_sequences(subject.action.inputs.config)
        with self.stages.stage("reference"), timed_calls(self.stages.step):
            for result in measurement.validation.methods:
                if not subject.validates(result.method):
                    continue
                judge = ReferenceJudge(
                    result,
                    subject.programs,
                    counts,
                    subject.settings,
                    measurement.budget,
                    measurement.open_lane,
                )
                _judge_method(result, subject, judge)


def counts_sequences(config: PackageConfig) -> bool:
    """Return whether references that change one module are also compared in sequence.

    They are, unless the config splits the state of its methods or turns sequences off. If the
    config doesn't say, its methods have no buffer in common, and anything that one of them could
    leave to another was lost in tracing: a list, a dict or an attribute of the model.
    """
    sequences = config.validation.sequences
    if sequences is not None:
        return bool(sequences)
    return config.emit.memory_planning.share_mutable_buffers or not says_sharing(config)


def _judge_method(
    result: MethodValidation, subject: Subject, judge: ReferenceJudge
) -> None:
    method, root = result.method, subject.workspace.root
    source, planned = (
        subject.action.inputs.sources[method],
        subject.key["programs"][method],
    )
    if source.reference is not None:
        judge.judge(load_recording(subject.workspace.store.read(source.reference)))
    if "golden" in planned:
        path, content = planned["golden"]
        check_file(root, path, content)
        program, examples = subject.programs[method], subject.examples[method]
        try:
            judge.judge(read_golden(root, path, method, program, examples))
        except SourceError:
            # It changed during the build, which says nothing about the export.
            raise
        except PipelineError as error:
            judge.fail_to_read(path, error)
    judge.conclude()
