"""Times the methods of a package after validation has run them."""

from __future__ import annotations

from pipeline.features.latency.latency import measure_latencies
from pipeline.run.prove.measuring import Measurement, Measuring


class LatencyMeasuring(Measuring):
    """Adds the latency of each method to its record, within the remaining budget."""

    def after_run(self, measurement: Measurement) -> None:
        subject = measurement.subject
        validation = measurement.validation
        with self.stages.stage("time"):
            times = measure_latencies(
                measurement.files,
                validation.methods,
                subject.programs,
                subject.examples,
                subject.settings,
                measurement.running if validation.failures else measurement.budget,
                [*zip(self.stages.steps, self.stages.subjects, strict=True)],
            )
        for method, latency in times.items():
            measurement.method_facts.setdefault(method, {})["latency"] = latency
