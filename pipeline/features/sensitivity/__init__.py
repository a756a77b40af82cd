"""Sensitivity: the cost of quantizing each module of a package, and which modules to keep in float.

verb       the command: builds, prints, writes
proposal   measures, proposes, verifies
metric_search    finds what to keep in float to meet a metric's limits, in few builds
measure    the figures of a method's probes, as JSON, in a separate process
switches   a quantized program whose operators can be switched back to float
annotated_switches    switches for PT2E's quantizers
weight_switches    switches for torchao's quantizers, and OpenVINO's
calls      the examples that a method is measured on
rows       the figures of modules and operators
gradients  estimates the noise of every module at once
search     uses these estimates to find what to keep in float, in few probes
overrides  the `modules` of a config that keep these modules in float
trial      builds a package with another config, in a temporary folder
against    packages with groups of modules on another backend, with their costs and gains
against_table    the printed lines for `--against`
groups     finds the groups that matter, in few builds
operator_kinds    partitioners that leave a kind of operator to portable kernels
package_figures    packages against the float program, and their times
edits      changes one method in the config files of a package
variants   packages with one module in float: their bytes, times and metrics
planning   the figures of a package, where its report shows them
section    that part of the report
kept       records in the store, so that repeating a question runs nothing
timing     times packages in turns
table      the printed lines
form       the outline of the printed JSON
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "sensitivity",
    "measure the cost of quantizing each module, and propose modules to keep in float",
    verbs=(
        Command(
            "sensitivity",
            "measure the cost of quantizing each module, and find modules to keep in float",
            "package ...",
            options={
                "floor DB": "the minimum SQNR of an output on an example, by default the "
                "method's `min_sqnr`",
                "budget SECONDS": "time limit for the search's runs in a package, by default 300; "
                "skipped runs are reported",
                "variants N": "build the package with each of the N noisiest modules in float in "
                "turn, and report the cost in bytes and in milliseconds on this machine",
                "metric NAME": "base the proposal on the limits of this metric in "
                "`validate.metrics` instead of on a floor, and show its value with `--variants`",
                "against BACKEND": "report the effect of leaving modules to another backend: "
                "`portable` kernels, or an item of `partitioners` such as vulkan; uses at most "
                "`--variants` builds per method (8 by default) for modules, and as many again for "
                "kinds of operators",
                "write": "write the proposal to the config, keeping its comments and layout",
                "json": "print the sensitivity.json of all packages",
            },
            more=(
                "Stale packages are built first; the result is written to "
                "build/<package>/sensitivity.json. A proposal is built and measured before it is "
                "printed."
            ),
            examples=(
                (
                    "doit sensitivity vision-int8",
                    "print a table of modules and operators",
                ),
                (
                    "doit sensitivity vision-int8 --floor 30 --write",
                    "keep enough in float for 30 dB",
                ),
                (
                    "doit sensitivity vision-int8 --metric top1 --write",
                    "keep enough in float for the limits of top1",
                ),
                (
                    "doit sensitivity vision --against portable",
                    "show what each part gains from its delegate",
                ),
            ),
            run="pipeline.features.sensitivity.verb:run",
            record="pipeline.features.sensitivity.form:SENSITIVITY",
            builds=True,
        ),
    ),
    summarize="pipeline.features.sensitivity.planning:summarize",
    planning="pipeline.features.sensitivity.planning:SensitivityPlanning",
    describe_key="pipeline.features.sensitivity.planning:describe_key",
    sections={19: "pipeline.features.sensitivity.section:section"},
    outlines={"sensitivity": "pipeline.features.sensitivity.kept:SENSITIVITY_RESULT"},
)
