"""Actions: what a build does, each a pure function of its key, and how keys are made.

Nothing here reads a file or imports torch. The digest of a key names the action, and its result in
the store; everything that can change the result is in the key, and nothing else is, so neither is
any path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pipeline.program.sources import MethodSource
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.toolchain import code, describing_code, host, toolchain

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.backends import Backend, QuantizeConfig
    from pipeline.config.load import PackageConfig

Kind = Literal["export", "quantize", "compile", "link", "validate"]
# The contents of the files of the workspace that a method's options name, by the option's place in
# it, such as `partitioners[0].ethos-u.config_ini`.
Contents = Mapping[str, Sequence[Digest]]
CALIBRATION = "quantize.calibration"
_NOT_COMPILED = ("layout", "etrecord")  # of `emit`: what no object depends on
_NO_FILES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Action:
    """`where` tells a worker where the inputs stand that the key describes by content."""

    kind: Kind
    model: str
    package: str | None
    method: str | None
    key: Mapping[str, Any]
    where: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> Digest:
        return digest.of_json(self.key)

    @property
    def title(self) -> str:
        names = (self.package or self.model, self.method)
        return f"{self.kind} {'/'.join(name for name in names if name)}"


def reads_key(model: str, source: Digest) -> dict[str, Any]:
    """Names the record of what an exporter of this content read when it last ran: where to look,
    never what was found, so neither toolchain nor code belong to it."""
    return {"kind": "reads", "model": model, "source": source}


def programs_key(archive: Digest) -> dict[str, Any]:
    """Names what an archive of these bytes holds."""
    return {"kind": "programs", "archive": archive, "code": describing_code()}


def program_key(program: Digest) -> dict[str, Any]:
    """Names the parts of a program, by which two programs are compared."""
    return {"kind": "program", "program": program}


def export_action(
    model: str,
    source: Digest,
    reads: Mapping[str, Digest | None],
    distributions: Sequence[str],
    path: str,
) -> Action:
    """`reads` are the files of the workspace that the exporter imports or opens, by their path
    in it; None stands for one that is not there."""
    key = {**_common("export", distributions), "model": model, "source": source, "reads": reads}
    return Action("export", model, None, None, key, {"path": path})


def exported_blobs(result: Mapping[str, Any]) -> Iterator[Digest]:
    """What the result of an export needs: the archive and the inputs."""
    yield result["archive"]
    for method in result["methods"]:
        yield from [method["examples"]] if method["examples"] else []
        yield from method["batches"]


def compile_units(config: PackageConfig) -> list[tuple[str, ...]]:
    """Methods that are compiled together: those whose backends see all methods, or all that share
    their mutable buffers; then singles."""
    joint = tuple(
        name
        for name, method in config.methods.items()
        if any(spec.backend.joint for spec in method.partitioners)
    )
    if config.emit.memory_planning.share_mutable_buffers:
        joint = tuple(config.methods)
    singles: list[tuple[str, ...]] = [(name,) for name in config.methods if name not in joint]
    return [joint, *singles] if joint else singles


def unit_name(unit: Sequence[str]) -> str:
    return "+".join(unit)


def quantize_action(
    config: PackageConfig, method: str, source: MethodSource, files: Contents = _NO_FILES
) -> Action:
    """Its key holds neither packages nor partitioners, so that all of them share it."""
    spec = config.methods[method].quantize
    assert spec is not None
    own = {place: contents for place, contents in files.items() if _is_quantizers(place)}
    calibration = calibration_of(spec, source, own.pop(CALIBRATION, ()))
    made_of = {
        "program": source.program,
        # The quantized program bears them, whoever reads it then.
        "names": source.names,
        "calibration": calibration,
        "quantize": spec.resolved(),
        **({"files": own} if own else {}),
    }
    entry = spec.entry
    key = {**_common("quantize", sorted(entry.distributions)), "methods": {method: made_of}}
    facts = dict(sorted(entry.facts().items())) if entry.facts is not None else {}
    if facts:
        key["facts"] = {entry.name: facts}
    if spec.depends_on_host:
        key["host"] = host()
    where = {"source": source, "config": config.methods[method]}
    return Action("quantize", config.model, config.package, method, key, where)


def compile_action(
    config: PackageConfig,
    unit: Sequence[str],
    methods: Mapping[str, MethodSource],
    quantizes: Mapping[str, Action],
    passes: Mapping[str, Mapping[str, Digest]],
    files: Mapping[str, Contents] = _NO_FILES,
) -> Action:
    """`quantizes` are the actions of the methods that are quantized. Their digests stand in the
    key, so whether a method was compiled can be told without asking for a quantized program.
    `passes` are the files of each pass of the config, by reference; `files` those that the
    options of each method name."""
    quantized = {name: quantizes[name].digest for name in unit if name in quantizes}
    programs = {
        name: {
            "program": methods[name].program,
            "names": methods[name].names if names_count(config, name) else None,
            **config.methods[name].resolved(),
            "quantize": quantized.get(name),
            **_of_partitioners(files.get(name, _NO_FILES)),
        }
        for name in unit
    }
    key = {
        **_common("compile", distributions_of(config, unit)),
        "methods": programs,
        "emit": {k: v for k, v in config.emit.resolved().items() if k not in _NOT_COMPILED},
    }
    together = [name for name in methods if name in unit]
    if len(together) > 1:  # a backend that sees all methods takes them in the order of the model
        key["order"] = together
    if config.emit.etrecord:  # which tells lines of the source, unknown to a program's digest
        key["etrecord"] = {name: methods[name].content for name in unit}
    facts = facts_of(config, unit)
    if facts:
        key["facts"] = facts
    own = sorted(set(references_of(config, unit)))
    if own:
        key["passes"] = {reference: passes[reference] for reference in own}
    where = {
        "sources": {name: methods[name] for name in together},
        "quantizes": {name: quantizes[name] for name in quantized},
        "configs": {name: config.methods[name] for name in together},
        "emit": config.emit,
    }
    return Action("compile", config.model, config.package, unit_name(unit), key, where)


def _is_quantizers(place: str) -> bool:
    return place.startswith("quantize.")


def _of_partitioners(files: Contents) -> dict[str, Any]:
    own = {place: contents for place, contents in files.items() if not _is_quantizers(place)}
    return {"files": own} if own else {}


def distributions_of(config: PackageConfig, methods: Iterable[str]) -> list[str]:
    """Those whose versions can change what the backends of these methods make."""
    return sorted({name for b in backends_of(config, methods) for name in b.distributions})


def backends_of(config: PackageConfig, methods: Iterable[str]) -> Iterator[Backend]:
    for name in methods:
        yield from (spec.backend for spec in config.methods[name].partitioners)


def quantized_methods(config: PackageConfig) -> list[str]:
    return [name for name, method in config.methods.items() if method.quantize is not None]


def references_of(config: PackageConfig, methods: Iterable[str]) -> Iterator[str]:
    """The passes that lowering and emitting these methods takes."""
    for name in methods:
        yield from (spec.reference for spec in config.methods[name].edge.passes)
    yield from (spec.reference for spec in config.emit.passes)


def names_count(config: PackageConfig, method: str) -> bool:
    return any(backend.names_count for backend in backends_of(config, [method]))


def facts_of(config: PackageConfig, methods: Iterable[str]) -> dict[str, dict[str, str]]:
    """What else of this machine can change what these backends make, by backend."""
    machines = {b.name: b.machine for b in backends_of(config, methods)}
    return {n: machine["facts"] for n, machine in sorted(machines.items()) if "facts" in machine}


def not_run(config: PackageConfig) -> dict[str, str]:
    """Why this machine can't run what some backends make, by the backend's id."""
    used = {b.backend_id: b.machine for b in backends_of(config, config.methods)}
    return {
        i: machine["cannot_run"] for i, machine in sorted(used.items()) if "cannot_run" in machine
    }


def calibration_of(
    spec: QuantizeConfig, source: MethodSource, files: Sequence[Digest] = ()
) -> Digest | list[Digest] | None:
    """The inputs that a static quantization observes: those of files, else the model's own, else
    its examples."""
    if not spec.calibrates:
        return None
    return list(files) or source.calibration or source.examples


def link_action(
    config: PackageConfig, compiles: Sequence[Action], methods: Mapping[str, MethodSource]
) -> Action:
    """Keyed by the compile actions, not by their objects: a fresh checkout finds the package
    without looking at any object. Methods are linked in the order of the model source."""
    key = {
        **_common("link"),
        "package": config.package,
        "model": config.model,
        "target": config.target,
        "order": list(methods),
        "layout": config.emit.layout.resolved(),
        "compiles": {action.method: action.digest for action in compiles},
        "constant_methods": [[name, value] for name, value in config.constant_methods.items()],
    }
    quantizes = {n: q for action in compiles for n, q in action.where["quantizes"].items()}
    made_of = {n: made for action in compiles for n, made in action.key["methods"].items()}
    files = {n: {"files": made["files"]} for n, made in made_of.items() if "files" in made}
    where = {
        "compiles": {action.method: action.digest for action in compiles},
        "quantizes": {name: action.digest for name, action in quantizes.items()},
        "lowering": {n: m.resolved() | files.get(n, {}) for n, m in config.methods.items()},
        "emit": config.emit.resolved(),
        "programs": {name: source.program for name, source in methods.items()},
        "host": next((q.key["host"] for q in quantizes.values() if "host" in q.key), None),
    }
    return Action("link", config.model, config.package, None, key, where)


def validate_action(
    config: PackageConfig,
    files: Mapping[str, Digest],
    methods: Mapping[str, MethodSource],
    examples: Contents = _NO_FILES,
    baseline: Digest | None = None,
    places: Mapping[str, str] = _NO_FILES,
) -> Action:
    """`files` are the digests of the package on disk, which is what gets validated; `examples`
    those of the files that the config names for a method, which stand in place of the model's;
    `baseline` that of the file with the figures that were accepted; `places` are where the config
    says what. What is measured has a key of its own in this one, without gates and baseline."""
    settings = config.validation.resolved()
    if not settings["bundle"]:  # what is left out must not count
        del settings["bundle"], settings["bundle_limit"]
    own = settings["methods"]
    held_to = {
        "gates": settings.pop("gates"),
        "methods": {name: {"gates": each["gates"]} for name, each in own.items()},
    }
    settings["methods"] = {
        name: limits
        for name, each in own.items()
        if (limits := {n: v for n, v in each.items() if n != "gates" and v is not None})
    }
    measured = {
        **_common("measure"),
        "package": config.package,
        "files": files,
        "programs": {
            name: {"program": m.program, "examples": list(examples.get(name, ())) or m.examples}
            for name, m in methods.items()
        },
        "cases": {name: list(config.cases_of(name)) for name in methods},
        "sequences": config.sequences,
        "constant_methods": config.constant_methods,
        "settings": settings,
        "not_run": not_run(config),
        "host": host(),
        "facts": facts_of(config, config.methods),
    }
    key = {
        **_common("validate"),
        "measured": measured,
        "held_to": held_to,
        "baseline": baseline,
    }
    where = {
        "sources": dict(methods),
        "places": dict(places),
        "constant_methods": config.constant_methods,
        "settings": config.validation,
        "examples": {n: own.examples or () for n, own in config.validation.methods.items()},
        # How a method that fails is lowered again, to find out where.
        "configs": dict(config.methods),
        "emit": config.emit,
    }
    return Action("validate", config.model, config.package, None, key, where)


def _common(kind: str, distributions: Sequence[str] = ()) -> dict[str, Any]:
    return {"kind": kind, "code": code(kind), "toolchain": toolchain(distributions)}
