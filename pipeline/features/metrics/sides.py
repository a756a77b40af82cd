"""The two sides of a metric: the package on a device, and the package's source.

The source is PyTorch's own module if the exporter names one, and otherwise the exported program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.devices.interface import PackageFiles
from pipeline.devices.registry import devices
from pipeline.devices.session import Session
from pipeline.features.metrics.calls import CallServer
from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.kinds.export import ExportInputs
from pipeline.program.eager import Source, common_buffers
from pipeline.run.prove.subject import Subject
from pipeline.store.errors import PipelineError
from pipeline.validate.budget import Budget

Use = Callable[[CallServer], Any]
_BOARD = "board:"  # begins a board's registered name; `validate.devices` omits it


def use_package(
    subject: Subject, budget: Budget, files: PackageFiles, device: str, use: Use
) -> Any:
    """Call `use` with the methods of a package on a device, and return its result.

    The device "" is this machine's bindings. A board is held until `use` returns. Raises
    PipelineError if the device is missing or can't be reached.
    """
    name = _find_registered(device)
    calls = _serve_package(subject, budget, files, name)
    try:
        return use(calls)
    finally:
        if name:
            _close(name, files)


def _find_registered(device: str) -> str:
    """Return the registered name of a device that `validate.devices` names."""
    is_board = device and ":" not in device and device not in devices().names()
    return f"{_BOARD}{device}" if is_board else device


def _close(device: str, files: PackageFiles) -> None:
    """Release what a device holds for a package, such as a board's lock."""
    close = getattr(devices().get(device), "close", None)
    if close is not None:
        close(files)


def _serve_package(
    subject: Subject, budget: Budget, files: PackageFiles, device: str
) -> CallServer:
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


def use_source(subject: Subject, budget: Budget, use: Use) -> Any:
    """Call `use` with the exported programs of a package, and return its result.

    The programs run in eager mode, as they were before any quantization.
    """
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

    calls = CallServer(
        sorted(specs),
        run,
        reset if has_state else None,
        subject.settings.timeout,
        budget,
    )
    return use(calls)


def use_references(
    subject: Subject, budget: Budget, action: Action[ExportInputs], use: Use
) -> Any:
    """Call `use` with PyTorch's own modules, and return its result.

    These are the modules that the package's exporter names as references. Raises PipelineError if
    the exporter raises an error.
    """
    specs = _read_specs(subject)

    def use_calls(references: Any) -> Any:
        def run(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            return references.call(method, specs[method].flat_arguments(args, kwargs))

        timeout = subject.settings.timeout
        # An exporter may name references for only some methods.
        methods = sorted(specs.keys() & {*references.methods})
        return use(CallServer(methods, run, references.reset, timeout, budget))

    arguments = (action, subject.workspace.root, subject.settings.timeout, use_calls)
    return next(call_all("call_references", *arguments))


def _read_specs(subject: Subject) -> dict[str, Any]:
    """Return the signatures, from the manifest, of the methods that have a source.

    Raises PipelineError if the feature that reads signatures is missing.
    """
    specs = {}
    for name in subject.programs:
        signature = subject.methods[name]["signature"]
        specs[name] = next(call_all("read_signature", signature), None)
        if specs[name] is None:
            raise PipelineError('metrics need the feature "loading"')
    return specs


def _find_sharing(subject: Subject) -> tuple[str, ...]:
    """Return the names of the methods that share state in the package."""
    planning = subject.manifest.get("emit", {}).get("memory_planning", {})
    if not planning.get("share_mutable_buffers"):
        return ()
    methods: dict[str, None] = {}
    for users in common_buffers(subject.programs).values():
        methods |= dict.fromkeys(users)
    return tuple(methods)
