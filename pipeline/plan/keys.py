"""Makes actions with their keys, one function a kind, and keys of the plan's records.

The digest of a key names an action and its result in the store. A key holds everything that can
change the result and nothing else, so no path. Nothing here reads a file or imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline.plan.actions import (
    NO_OBJECTS,
    Action,
    CompileInputs,
    ExportInputs,
    FamilyObjects,
    LinkInputs,
    QuantizeInputs,
    ValidateInputs,
    unit_name,
)
from pipeline.plan.calibration import calibration_digests
from pipeline.plan.shared_state import says_sharing
from pipeline.program.constant_values import find_blobs
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest, hash_json
from pipeline.store.toolchain import code, hash_seed, host, toolchain

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.models import PackageConfig

Key = dict[str, Any]
# Libraries of operators, in the order in which they are loaded, with the inputs of each.
Libraries = Sequence[tuple[str, Mapping[str, str | None]]]
# The digests of the files of the workspace that a method's options name, by the option's place in
# the method, such as `partitioners[0].ethos-u.config_ini`.
OptionFiles = Mapping[str, Sequence[Digest]]
# By package and name, the digest and the size in bytes of each file that a device loads.
FamilyFiles = Mapping[str, Mapping[str, tuple[str, int]]]
# By method, the path and the digest of a file of recorded outputs.
GoldenFiles = Mapping[str, tuple[str, Digest]]
CALIBRATION = "quantize.calibration"
NO_FILES: Mapping[str, Any] = MappingProxyType({})
# Of `emit`: what no object depends on.
_NOT_COMPILED = ("layout", "etrecord", "metadata", "metadata_revision")


def reads_key(model: str, source: Digest) -> Key:
    """Name the record of the places that the last runs of an exporter of this content looked at.

    It says where to look, not what was found, so neither toolchain nor code belong to it.
    """
    return {"kind": "reads", "model": model, "source": source, "version": 2}


def programs_key(archive: Digest) -> Key:
    """Name the record of the programs in an archive of these bytes."""
    return {"kind": "programs", "archive": archive, "code": code("describe")}


def program_key(program: Digest) -> Key:
    """Name the record of a program's parts, by which two programs are compared."""
    return {"kind": "program", "program": program}


def export_action(
    model: str,
    source: Digest,
    reads: Mapping[str, Any],
    distributions: Sequence[str],
    inputs: ExportInputs,
    libraries: Libraries = (),
) -> Action[ExportInputs]:
    """Return the action that exports a model. `reads` is what was found at the places that the
    exporter looked at, by `plan.reads.Finder.find`."""
    key = {**_common("export", distributions), "model": model, "source": source, "reads": reads}
    key |= _operators(libraries)
    key["hash_seed"] = hash_seed()
    if inputs.unfollowed:  # nobody else is given what it made
        key["unfollowed"] = list(inputs.unfollowed)
    return Action("export", model, None, None, key, inputs)


def quantize_action(
    config: PackageConfig,
    method: str,
    source: MethodSource,
    files: OptionFiles = NO_FILES,
    libraries: Libraries = (),
) -> Action[QuantizeInputs]:
    """Return the action that quantizes a method. Its key holds neither package nor partitioners, so
    that all of them share the result."""
    spec = config.methods[method].quantize
    assert spec is not None
    described = {
        "program": source.program,
        # The quantized program bears them, whoever reads it then.
        "names": source.names,
        "calibration": calibration_digests(spec, source, files.get(CALIBRATION, ())),
        "quantize": spec.resolved(),
        **_files(files, quantizer=True),
    }
    if config.emit.emit_stacktrace:  # which the quantized program then bears
        described["content"] = source.content
    from pipeline.backends import QUANTIZERS  # pydantic, which a no-op run does without

    needs = QUANTIZERS[spec.quantizer].host
    key = {**_common("quantize", sorted(needs.distributions)), "methods": {method: described}}
    key |= _operators(libraries)
    if needs.facts is not None and (facts := needs.facts()):
        key["facts"] = {spec.quantizer: dict(sorted(facts.items()))}
    if spec.depends_on_host:
        key["host"] = host()
    inputs = QuantizeInputs(source, config.methods[method])
    return Action("quantize", config.model, config.package, method, key, inputs)


def compile_action(
    config: PackageConfig,
    unit: Sequence[str],
    methods: Mapping[str, MethodSource],
    quantizes: Mapping[str, Action[QuantizeInputs]],
    passes: Mapping[str, Mapping[str, str | None]],
    files: Mapping[str, OptionFiles] = NO_FILES,
    libraries: Libraries = (),
) -> Action[CompileInputs]:
    """Return the action that compiles the methods of a unit.

    Args:
        methods: all methods of the model, in its order.
        quantizes: the quantize actions of the package. The key holds their digests, so whether a
            method was compiled is known without its quantized program.
        passes, files: the inputs of each pass, by reference, and the files that each method names.
    """
    own = {name: quantizes[name] for name in unit if name in quantizes}
    key = {
        **_common("compile", config.distributions(unit)),
        "methods": {
            name: {
                "program": methods[name].program,
                "names": methods[name].names if config.names_count(name) else None,
                **_lowering(config, name),
                "quantize": own[name].digest if name in own else None,
                **_files(files.get(name, NO_FILES), quantizer=False),
            }
            for name in unit
        },
        "emit": {k: v for k, v in config.emit.resolved().items() if k not in _NOT_COMPILED},
    }
    together = {name: source for name, source in methods.items() if name in unit}
    beside = config.delegates_beside(unit)
    files_of_weights = [*config.emit.external_weights, *config.emit.external_files]
    more: Key = {
        # A backend that sees all methods takes them in the order of the model.
        "order": list(together) if len(together) > 1 else [],
        "content": {n: methods[n].content for n in unit} if config.emit.holds_lines else {},
        "facts": _machine_facts(config, unit),
        "delegates_beside": beside,
        # The first file with a pattern of a constant's name is its own.
        "file_order": files_of_weights if len(files_of_weights) > 1 else [],
        "passes": {name: passes[name] for name in sorted(set(config.pass_references(unit)))},
        **_operators(libraries),
    }
    key |= {name: value for name, value in more.items() if value}
    configs = {name: config.methods[name] for name in together}
    inputs = CompileInputs(together, own, configs, config.emit, beside)
    return Action("compile", config.model, config.package, unit_name(unit), key, inputs)


def refit_key(compiled: Mapping[str, Any], structures: Mapping[str, Mapping[str, Any]]) -> Key:
    """Name the record of what a unit is but for the contents of its constants.

    Args:
        compiled: the key of its compile action.
        structures: by method, what stands in the place of its program and its quantization.
    """
    methods = {
        name: {**own, "program": structures[name], "quantize": None}
        for name, own in compiled["methods"].items()
    }
    return {**compiled, "kind": "refit", "methods": methods}


def link_action(
    config: PackageConfig,
    compiles: Sequence[Action[CompileInputs]],
    methods: Mapping[str, MethodSource],
    family: FamilyObjects = NO_OBJECTS,
    revision: str = "",
) -> Action[LinkInputs]:
    """Return the action that links a package.

    Its key names the compile actions, not their objects: a fresh checkout finds the package without
    looking at any object. Methods are linked in the order of the model.

    Args:
        family: what decides on the files that its family shares, if it has one.
        revision: the commit that its metadata names, if they name one.
    """
    digests = {str(action.method): action.digest for action in compiles}
    key = {
        **_common("link"),
        "package": config.package,
        "model": config.model,
        "target": config.target,
        "file": config.stem,
        "order": list(methods),
        "layout": config.emit.layout.resolved(),
        "compiles": digests,
        **_allowing_none(config),
        "constant_methods": [[name, value] for name, value in config.constant_methods.items()],
    }
    if config.family is not None:
        share = [[file, list(patterns)] for file, patterns in config.family.files.items()]
        key["family"] = {
            "name": config.family.name,
            "base": config.family.base,
            "share": share,
            "objects": family.digest,
        }
    if config.emit.metadata:
        written = {k: v for k, v in config.resolved().items() if k != "validate"}
        key["metadata"] = {"config": hash_json(written), "revision": revision or None}
    quantizes = {n: q for action in compiles for n, q in action.inputs.quantizes.items()}
    described = {n: own for action in compiles for n, own in action.key["methods"].items()}
    inputs = LinkInputs(
        compiles=digests,
        quantizes={name: action.digest for name, action in quantizes.items()},
        lowering={
            name: method.resolved() | {k: v for k, v in described[name].items() if k == "files"}
            for name, method in config.methods.items()
        },
        emit=config.emit.resolved(),
        programs={name: source.program for name, source in methods.items()},
        host=next((q.key["host"] for q in quantizes.values() if "host" in q.key), None),
        family=family.compiles,
    )
    return Action("link", config.model, config.package, None, key, inputs)


def family_key(link: Mapping[str, Any]) -> Key:
    """Name the record of the files that a family shares, by the key of a link action of it."""
    return {"kind": "family", **_laying_out(link), **link["family"]}


def family_files_key(link: Mapping[str, Any], content: Digest) -> Key:
    """Name the record of `.ptd` files of this content, by the key of a link action."""
    return {"kind": "family-files", **_laying_out(link), "content": content}


def _laying_out(link: Mapping[str, Any]) -> Key:
    return {"code": link["code"], "toolchain": link["toolchain"]}


def validate_action(
    config: PackageConfig,
    files: Mapping[str, Digest],
    methods: Mapping[str, MethodSource],
    examples: OptionFiles = NO_FILES,
    baseline: Digest | None = None,
    places: Mapping[str, str] = NO_FILES,
    quotable: Mapping[str, Digest] = NO_FILES,
    configs: Mapping[str, Digest] = NO_FILES,
    libraries: Libraries = (),
    family: Digest | None = None,
    family_files: FamilyFiles = NO_FILES,
    only: Sequence[str] = (),
    targets: Mapping[str, Mapping[str, Any]] = NO_FILES,
    in_ci: bool = False,
    golden: GoldenFiles = NO_FILES,
) -> Action[ValidateInputs]:
    """Return the action that validates a package.

    What is measured has a key of its own in the action's, `measured`, without gates and baseline.

    Args:
        files: the files of the package on disk, which are validated.
        examples: the files that the config names for a method, which replace the model's examples.
        baseline: the file with the accepted figures.
        places: file and line of settings, by their path in the config.
        quotable: the files of the workspace whose lines stand in what is measured, and which the
            report quotes.
        configs: the files that `places` names, which the report quotes too.
        family: the digest of the files of all packages of its family, if it has one.
        family_files: these files, with their sizes.
        only: the methods that are validated, if not all are.
        targets: what the runtimes hold that the package is held to, by name; its own `target` is
            one of them unless `runs_on` names others.
        in_ci: whether a baseline that is missing is a failure.
        golden: the file of recorded outputs of each method that has one.
    """
    settings = config.validation.resolved()
    if settings["gates"]["runs_on"] is None and config.target in targets:
        settings["gates"]["runs_on"] = [config.target]
    own = settings["methods"].items()
    # Traces in archives name lines too, of files that aren't here.
    archives = {s.archive.name: s.content for s in methods.values() if not s.exported}
    key = {
        **_common("validate"),
        "measured": {
            **_measure_key(config, files, methods, examples, golden),
            **_operators(libraries),
            "sources": {**archives, **quotable},
            **({"only": unit_name(only)} if only else {}),
        },
        "held_to": {
            "gates": settings["gates"],
            "methods": {name: {"gates": each["gates"]} for name, each in own},
            "allow": settings["allow"],
            **({} if says_sharing(config) else {"share_mutable_buffers": None}),
            **({"family": family} if family else {}),
            **({"targets": targets} if targets else {}),
            **({"requires_baseline": True} if in_ci and config.needs_baseline else {}),
        },
        "baseline": baseline,
        "places": dict(places),
        "configs": dict(configs),
    }
    named = {**quotable, **configs}
    inputs = ValidateInputs(dict(methods), dict(places), named, config, family_files)
    return Action("validate", config.model, config.package, unit_name(only) or None, key, inputs)


def _measure_key(
    config: PackageConfig,
    files: Mapping[str, Digest],
    methods: Mapping[str, MethodSource],
    examples: OptionFiles,
    golden: GoldenFiles,
) -> Key:
    settings = config.validation.resolved()
    machines = {b.backend_id: b.machine for b in config.backends(config.methods)}
    runs_with = {i: m["runs_with"] for i, m in sorted(machines.items()) if "runs_with" in m}
    del settings["gates"], settings["allow"]
    if not settings["bundle"]:  # what is left out must not count
        del settings["bundle"], settings["bundle_limit"]
    settings["reference"] = _drop_unset(settings["reference"])
    if not settings["reference"]:
        del settings["reference"]
    settings["methods"] = _measured_methods(settings["methods"])
    return {
        **_common("measure", config.distributions(config.methods)),
        "package": config.package,
        "files": files,
        "programs": {
            name: {
                "program": m.program,
                "examples": list(examples.get(name, ())) or m.examples,
                **({"reference": m.reference} if m.reference else {}),
                **({"golden": list(golden[name])} if name in golden else {}),
            }
            for name, m in methods.items()
        },
        "cases": {name: list(config.select_cases(name)) for name in methods},
        "sequences": config.sequences,
        **({} if says_sharing(config) else {"share_mutable_buffers": None}),
        "constant_methods": config.constant_methods,
        "settings": settings,
        # What was narrowed is told, and bytes can be the same either way.
        "keep_ranges": {n: True for n, own in config.methods.items() if own.edge.keep_ranges},
        # Why this machine can't run what some backends make, by the backend's id.
        "not_run": {i: m["cannot_run"] for i, m in sorted(machines.items()) if "cannot_run" in m},
        "host": host(),
        "facts": _machine_facts(config, config.methods),
        **({"runs_with": runs_with} if runs_with else {}),
    }


def _measured_methods(methods: Mapping[str, Mapping[str, Any]]) -> Key:
    """Return what the config sets for each method that it sets something for, without gates."""
    measured = {}
    for name, limits in methods.items():
        reference = _drop_unset(limits["reference"]) or None
        settings = _drop_unset({**limits, "reference": reference, "gates": None})
        if settings:
            measured[name] = settings
    return measured


def _drop_unset(limits: Mapping[str, Any]) -> Key:
    return {name: value for name, value in limits.items() if value is not None}


def exported_blobs(result: Mapping[str, Any]) -> Iterator[Digest]:
    """Yield the blobs that the result of an export needs: the archive, the inputs and tensors that
    constant methods return."""
    yield result["archive"]
    for _, value in result["constant_methods"]:
        yield from find_blobs(value)
    for method in result["methods"]:
        yield from filter(None, (method["examples"], method["reference"]))
        yield from method["batches"]


def _common(kind: str, distributions: Sequence[str] = ()) -> Key:
    return {"kind": kind, "code": code(kind), "toolchain": toolchain(distributions)}


def _lowering(config: PackageConfig, method: str) -> Key:
    """Return what a method's object depends on of its config: not what linking accepts."""
    resolved = config.methods[method].resolved()
    return {name: value for name, value in resolved.items() if name != "allow_none"}


def _allowing_none(config: PackageConfig) -> Key:
    """Return the methods that may be delegated or quantized nowhere, where there are some."""
    names = sorted(name for name, method in config.methods.items() if method.allow_none)
    return {"allow_none": names} if names else {}


def _operators(libraries: Libraries) -> Key:
    names = [name for name, _ in libraries]  # which are loaded in this order
    return {"operators": names, "operator_inputs": dict(libraries)} if names else {}


def _files(files: OptionFiles, quantizer: bool) -> Key:
    """Return the files of the quantizer's options or of the partitioners', without those of
    calibration, which have a place of their own."""
    own = {
        place: found
        for place, found in files.items()
        if place != CALIBRATION and place.startswith("quantize.") == quantizer
    }
    return {"files": own} if own else {}


def _machine_facts(config: PackageConfig, methods: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what else of this machine can change what these backends make, by backend."""
    machines = {b.name: b.machine for b in config.backends(methods)}
    return {n: machine["facts"] for n, machine in sorted(machines.items()) if "facts" in machine}
