"""The two sides of a metric: the package, on a device, and the programs that it was exported as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import Session
from pipeline.features.metrics.calls import CallServer
from pipeline.program.eager import Source, common_buffers
from pipeline.program.method_spec import MethodSpec
from pipeline.run.prove.subject import Subject
from pipeline.validate.budget import Budget


def open_package(
    subject: Subject, budget: Budget, files: PackageFiles, device: str
) -> CallServer:
    """Return the methods of a package as a device runs them, "" for this machine's bindings. Raises
    PipelineError for a device that there is not."""
    sources = {name: Source(program) for name, program in subject.programs.items()}
    has_state = any(source.state for source in sources.values())
    together = _find_sharing(subject)
    session = Session(files, device, together)
    specs = _read_specs(subject)

    def run(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        spec = specs[method]
        leaves = spec.flat_arguments(args, kwargs)
        outputs = session.run(method, spec.lay_out(leaves))
        return spec.nested_outputs(leaves, outputs[len(spec.changes) :])

    def reset() -> None:
        nonlocal session
        session = Session(files, device, together)

    return CallServer(
        sorted(specs),
        run,
        reset if has_state else None,
        subject.settings.timeout,
        budget,
    )


def open_source(subject: Subject, budget: Budget) -> CallServer:
    """Return the methods of a package's source: the exported programs, before any quantizing, in
    eager mode."""
    sources: dict[str, Source] = {}
    if _find_sharing(subject):
        sources = Source.with_common_state(subject.programs)
    else:
        sources = {name: Source(program) for name, program in subject.programs.items()}
    has_state = any(source.state for source in sources.values())
    specs = _read_specs(subject)

    def run(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        spec = specs[method]
        leaves = spec.flat_arguments(args, kwargs)
        outputs = sources[method].run_flat(spec.lay_out(leaves))
        return spec.nested_outputs(leaves, outputs[len(spec.changes) :])

    def reset() -> None:
        for source in sources.values():
            source.reset()

    return CallServer(
        sorted(specs),
        run,
        reset if has_state else None,
        subject.settings.timeout,
        budget,
    )


def _read_specs(subject: Subject) -> dict[str, MethodSpec]:
    """Return the signatures of the methods that have a source, as the manifest has them."""
    return {
        name: MethodSpec.from_json(subject.methods[name]["signature"])
        for name in subject.programs
    }


def _find_sharing(subject: Subject) -> tuple[str, ...]:
    """Return the methods that share state in the package, or none."""
    planning = subject.manifest.get("emit", {}).get("memory_planning", {})
    if not planning.get("share_mutable_buffers"):
        return ()
    methods: dict[str, None] = {}
    for users in common_buffers(subject.programs).values():
        methods |= dict.fromkeys(users)
    return tuple(methods)
