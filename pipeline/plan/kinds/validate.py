"""Validate actions: a package on disk, the programs to compare it with, and its limits.

The key of the measurement is a separate field of the action's key, `measured`, without gates and
baseline, so that a changed gate is judged without running the package again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline.plan.actions import Action, unit_name
from pipeline.plan.kinds.parts import (
    Key,
    Libraries,
    OptionFiles,
    common_fields,
    find_libraries,
    hash_files,
    machine_facts,
    operator_fields,
)
from pipeline.plan.kinds.words import describe_setting
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.json_diff import ABSENT, Difference
from pipeline.store.toolchain import host
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.models import MethodConfig, PackageConfig

Json = Mapping[str, Any]
# The path and the digest of a file of recorded outputs, by method.
GoldenFiles = Mapping[str, tuple[str, Digest]]


@dataclass(frozen=True, eq=False, repr=False)  # generating __eq__ and __repr__ is slow
class ValidateInputs:
    """The inputs of a validation.

    They include the config, because a method that fails is lowered again.

    Attributes:
        files: the package's files on disk, which are validated.
        sources: the methods that the package is compared with.
        examples: the files that the config names for a method, which replace the model's examples.
        baseline: the file with the accepted figures.
        places: the file and line of settings, by their path in the config.
        quotable: the workspace files whose lines are quoted by both the measurement and the report.
        config_files: the files that `places` names, which the report quotes too.
        held_to: requirements on the package, further fields of the key that features add.
        record: fields that features add to the record of the report.
        only: the methods that are validated, if not all are.
        in_ci: whether a missing baseline is a failure.
        golden: the file of recorded outputs of each method that has one.
        written: the config as it was written, with the values of its variables.
        quantizes: the quantize actions whose programs the package was made from.
    """

    config: PackageConfig
    files: Mapping[str, Digest]
    sources: Mapping[str, MethodSource]
    examples: OptionFiles = field(default_factory=dict)
    baseline: Digest | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    quotable: Mapping[str, Digest] = field(default_factory=dict)
    config_files: Mapping[str, Digest] = field(default_factory=dict)
    libraries: Libraries = ()
    held_to: Json = field(default_factory=dict)
    record: Json = field(default_factory=dict)
    only: Sequence[str] = ()
    in_ci: bool = False
    golden: GoldenFiles = field(default_factory=dict)
    written: Any = None
    quantizes: Mapping[str, Digest] = field(default_factory=dict)

    @property
    def configs(self) -> Mapping[str, MethodConfig]:
        return self.config.methods

    @property
    def references(self) -> Sequence[str]:
        return list(self.config.pass_references(self.config.methods))

    @property
    def results(self) -> Sequence[Digest]:
        return list(self.quantizes.values())

    @property
    def quoted(self) -> Mapping[str, Digest]:
        """The workspace files whose lines the report quotes."""
        return {**self.quotable, **self.config_files}

    @property
    def traced(self) -> Mapping[str, Digest | None]:
        """The files whose lines the measurement quotes, and the archives of the methods.

        Traces in archives also name lines, of files that aren't here.
        """
        archives = {
            source.archive.name: source.content
            for source in self.sources.values()
            if not source.exported
        }
        return {**archives, **self.quotable}

    def renewed(self, workspace: Workspace) -> ValidateInputs:
        """Return the same inputs with the workspace's current files and libraries."""
        examples = {
            name: hash_files(limits.examples or (), workspace)
            for name, limits in self.config.validation.methods.items()
        }
        golden = {}
        for name, (path, _) in self.golden.items():
            content = workspace.find_data(path)
            if content is not None:
                golden[name] = (path, content)
        return replace(
            self,
            examples=examples,
            baseline=workspace.find_data(workspace.baseline(self.config.package)),
            golden=golden,
            libraries=find_libraries(self.libraries, workspace),
        )


def validate_action(inputs: ValidateInputs) -> Action[ValidateInputs]:
    """Return the action that validates a package."""
    config = inputs.config
    name = unit_name(inputs.only) or None
    key = validate_key(inputs)
    return Action("validate", config.model, config.package, name, key, inputs)


def validate_key(inputs: ValidateInputs) -> Key:
    return {
        **common_fields("validate"),
        "measured": measured_key(inputs),
        "held_to": _held_to(inputs),
        "baseline": inputs.baseline,
        "places": dict(inputs.places),
        "configs": dict(inputs.config_files),
        "sources": dict(inputs.traced),
    }


def measured_key(inputs: ValidateInputs) -> Key:
    """Return the key of the measurement."""
    config = inputs.config
    machines = {b.backend_id: b.machine for b in config.backends(config.methods)}
    # By backend, why this machine can't run its delegates, or the library with which it can.
    not_run = {}
    runs_with = {}
    for backend_id, machine in sorted(machines.items()):
        if "cannot_run" in machine:
            not_run[backend_id] = machine["cannot_run"]
        if "runs_with" in machine:
            runs_with[backend_id] = machine["runs_with"]
    kept_ranges = {
        name: True for name, method in config.methods.items() if method.edge.keep_ranges
    }
    return {
        **common_fields("measure", config.distributions(config.methods)),
        "package": config.package,
        "files": inputs.files,
        "programs": {name: _program_fields(inputs, name) for name in inputs.sources},
        "cases": {name: list(config.select_cases(name)) for name in inputs.sources},
        "sequences": config.sequences,
        **_unsaid_sharing(config),
        "constant_methods": config.constant_methods,
        "settings": _measured_settings(config),
        # Narrowed sizes are reported, and the bytes can be the same either way.
        "keep_ranges": kept_ranges,
        "not_run": not_run,
        "devices": inputs.held_to.get("devices"),  # other than this machine
        "metrics": inputs.held_to.get("metrics"),
        "host": host(),
        "facts": machine_facts(config, config.methods),
        **({"runs_with": runs_with} if runs_with else {}),
        **operator_fields(inputs.libraries),
        **({"only": unit_name(inputs.only)} if inputs.only else {}),
    }


def _program_fields(inputs: ValidateInputs, method: str) -> Key:
    source = inputs.sources[method]
    fields: Key = {
        "program": source.program,
        "examples": list(inputs.examples.get(method, ())) or source.examples,
    }
    if source.reference:
        fields["reference"] = source.reference
    if method in inputs.golden:
        fields["golden"] = list(inputs.golden[method])
    return fields


def _measured_settings(config: PackageConfig) -> Key:
    """Return the settings of a validation that affect measuring, without the requirements."""
    settings = config.validation.resolved()
    del settings["gates"], settings["allow"]
    if not settings["bundle"]:  # settings of an omitted bundle must not count
        del settings["bundle"], settings["bundle_limit"]
    settings["reference"] = _drop_unset(settings["reference"])
    if not settings["reference"]:
        del settings["reference"]
    settings["methods"] = _measured_methods(settings["methods"])
    return settings


def _measured_methods(methods: Mapping[str, Json]) -> Key:
    """Return the settings that affect measuring, without gates, of each method that has any."""
    measured = {}
    for name, limits in methods.items():
        reference = _drop_unset(limits["reference"]) or None
        settings = _drop_unset({**limits, "reference": reference, "gates": None})
        if settings:
            measured[name] = settings
    return measured


def _drop_unset(limits: Json) -> Key:
    return {name: value for name, value in limits.items() if value is not None}


def _held_to(inputs: ValidateInputs) -> Key:
    """Return the requirements that measured values must meet."""
    config = inputs.config
    settings = config.validation.resolved()
    methods = settings["methods"].items()
    optional = {
        **inputs.held_to,
        "requires_baseline": inputs.in_ci and config.needs_baseline,
    }
    return {
        "gates": settings["gates"],
        "methods": {name: {"gates": limits["gates"]} for name, limits in methods},
        "allow": settings["allow"],
        **_unsaid_sharing(config),
        **{name: value for name, value in optional.items() if value},
    }


def _unsaid_sharing(config: PackageConfig) -> Key:
    """Return a field if a config doesn't say whether its methods share their state, else {}."""
    from pipeline.plan.shared_state import says_sharing  # a no-op run makes no key

    if says_sharing(config):
        return {}
    return {"share_mutable_buffers": None}


def describe_validate(difference: Difference, file: str) -> str | None:
    """Describe a difference in a field that only validate keys have; return None for any other."""
    change = difference.change()
    match difference.path:
        case ("measured", *_):
            return ""  # its fields are merged into the rest, and described there
        case ("only",):
            last = "all methods were"
            if difference.old is not ABSENT:
                last = f"only {difference.old} was"
            return f"{last} validated last"
        case ("files", name):
            return f"the package's {name} {change}"
        case ("programs", method, field_name) if field_name.startswith("examples"):
            return f"example inputs of {method} {change}"
        case ("programs", method, "reference"):
            return f"the outputs of the reference of {method} {change}"
        case ("programs", method, field_name) if field_name.startswith("golden"):
            return f"the file of recorded outputs of {method} {change}"
        case ("places", *_):
            return "the config's lines moved"
        case ("sources" | "configs", path):
            return f"{path}, whose lines the report quotes, {change}"
        case ("baseline",):
            return f"the baseline {change}"
        case ("keep_ranges", *method):
            return describe_setting(
                ".".join(("methods", *method, "edge.keep_ranges")), difference
            )
        case ("held_to", "share_mutable_buffers"):
            from pipeline.plan.shared_state import WHERE

            return describe_setting(WHERE, difference)
        case ("held_to", "requires_baseline"):
            return "gates that compare with a baseline need one in CI only"
        case ("held_to" | "settings", *path):
            return describe_setting(".".join(("validate", *path)), difference)
    return None
