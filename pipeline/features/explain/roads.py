"""Roads: the ways in which the packages of a workspace depend on a thing.

A thing is a file or folder, a tensor of a model, a backend, a distribution, an operator library, a
pass, or an environment variable (`$NAME`). Each function yields the roads of one kind: the methods,
the kind of road, and the reference to the thing. Nothing is exported or built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from packaging.utils import canonicalize_name

from pipeline.backends import QUANTIZERS
from pipeline.plan import keys
from pipeline.plan.golden import find_golden
from pipeline.plan.plan import Plan
from pipeline.store.toolchain import CORE

# A road, as returned by `make_road`.
Road = Mapping[str, Any]


def make_road(
    kind: str, through: str, methods: Sequence[str] = (), lowers: bool = True
) -> Road:
    """Return a road to a package, in the form of `forms.DEPENDENTS`.

    Args:
        kind: one of the values for `road` there.
        through: the reference to the thing: a key of the config, a pass, a file.
        methods: the methods that depend on the thing; empty for all methods of the package.
        lowers: whether a change of the thing lowers methods again, and not only validates the
            package.
    """
    return {
        "methods": list(methods) or None,
        "road": kind,
        "through": through,
        "lower": lowers,
    }


# Returns whether a name in a key or config refers to the thing.
Matches = Callable[[str], bool]


def make_match(word: str, spelled: str) -> Matches:
    """Return a predicate on names: whether a word refers to the name.

    Args:
        word: the word as typed, which may be a pattern.
        spelled: the word as a path in the workspace, in the spelling of records.
    """
    folder = spelled.rstrip("/") + "/"

    def matches(name: str) -> bool:
        return (
            name in (word, spelled)
            or name.startswith(folder)
            or fnmatchcase(name, word)
        )

    return matches


def find_roads(plan: Plan, package: str, matches: Matches) -> Iterator[Road]:
    """Yield the roads to a package. Raises SourceError if a model can't be read."""
    yield from _find_config_roads(plan, package, matches)
    if plan.model(package) not in plan.models.sources or plan.problems(package):
        return
    yield from _find_source_roads(plan, package, matches)
    yield from _find_file_roads(plan, package, matches)
    yield from _find_code_roads(plan, package, matches)
    yield from _find_backend_roads(plan, package, matches)
    yield from _find_toolchain_roads(plan, package, matches)


def _find_config_roads(plan: Plan, package: str, matches: Matches) -> Iterator[Road]:
    for path, _ in plan.configs.files(package):
        if matches(path):
            yield make_road("config", path)


def _find_source_roads(plan: Plan, package: str, matches: Matches) -> Iterator[Road]:
    """Yield the roads through a model: its source, its exporter's reads, its tensors."""
    root = plan.workspace.root
    export = str(plan.export(package))
    source = plan.models.source(export)
    methods = plan.methods(package) or {}
    path = str(source.path.relative_to(root))
    if source.form == "exporter":
        if matches(path):
            yield make_road("model", path)
        yield from _find_exporter_roads(plan, export, matches)
    else:
        for name, method in methods.items():
            archive = str(method.archive.relative_to(root))
            if matches(archive):
                yield make_road("model", archive, [name])
    for name, method in methods.items():
        entry = plan.workspace.store.get_by_key(keys.program_key(method.program))
        for tensor in entry.result["tensors"] if entry else ():
            if matches(tensor):
                yield make_road("weight", tensor, [name])


def _find_exporter_roads(plan: Plan, export: str, matches: Matches) -> Iterator[Road]:
    action = plan.models.export(export)
    reads = action.key["reads"]
    for part in ("files", "listings", "links"):
        for name in reads[part]:
            if matches(name):
                yield make_road("exporter input", name)
    for name in reads["environment"]:
        if matches(f"${name}"):
            yield make_road("exporter input", f"${name}")
    for name, places in reads["modules"].items():
        if any(map(matches, places)):
            yield make_road("exporter input", f"import {name}")
    for name in action.inputs.distributions:
        if matches(canonicalize_name(name)):
            yield make_road("exporter input", f"distribution {name}")


def _find_file_roads(plan: Plan, package: str, matches: Matches) -> Iterator[Road]:
    """Yield the roads through files that a config names, or that are named after a package."""
    config = plan.config(package)
    for name, method in config.methods.items():
        for place, paths in method.files.items():
            if any(map(matches, paths)):
                yield make_road("config option", f"methods.{name}.{place}", [name])
    for name, limits in config.validation.methods.items():
        if any(map(matches, limits.examples or ())):
            where = f"validate.methods.{name}.examples"
            yield make_road("example inputs", where, [name], lowers=False)
    workspace = plan.workspace
    golden = find_golden(
        workspace, str(plan.export(package)), plan.methods(package) or {}
    )
    for name, (path, _) in golden.items():
        if matches(path):
            yield make_road("recorded outputs", path, [name], lowers=False)
    baseline = str(workspace.baseline(package).relative_to(workspace.root))
    if matches(baseline):
        yield make_road("baseline", baseline, lowers=False)


def _find_code_roads(plan: Plan, package: str, matches: Matches) -> Iterator[Road]:
    """Yield the roads through passes and operator libraries, whose code runs in lowering."""
    config = plan.config(package)
    for reference, inputs in plan.inputs.passes(package).items():
        if matches(reference) or _name_match(inputs, matches):
            methods = [
                name
                for name in config.methods
                if reference in set(config.pass_references([name]))
            ]
            yield make_road("pass", reference, methods)
    for library, inputs in plan.inputs.libraries(package):
        if matches(library) or _name_match(inputs, matches):
            yield make_road("operator library", library)


def _name_match(inputs: Mapping[str, object], matches: Matches) -> bool:
    """Return whether code depends on a thing, judging by the names of its inputs.

    These are paths, `$VARIABLE`, `lib:distribution` and `import module`.
    """
    for name in inputs:
        bare_name = name.removeprefix("lib:").removeprefix("import ")
        if matches(name) or matches(bare_name):
            return True
    return False


def _find_backend_roads(plan: Plan, package: str, matches: Matches) -> Iterator[Road]:
    config = plan.config(package)
    for name, method in config.methods.items():
        for backend in config.backends([name]):
            if matches(backend.name) or matches(backend.backend_id):
                yield make_road("backend", backend.name, [name])
        if method.quantize and matches(method.quantize.quantizer):
            yield make_road("quantizer", method.quantize.quantizer, [name])


def _find_toolchain_roads(plan: Plan, package: str, matches: Matches) -> Iterator[Road]:
    """Yield the roads through distributions whose versions affect the results."""
    for name in _select(CORE, matches):
        yield make_road("toolchain", name)
    config = plan.config(package)
    for method_name, method in config.methods.items():
        for backend in config.backends([method_name]):
            for name in _select(backend.host.distributions, matches):
                if name not in CORE:
                    through = f"{name}, of {backend.name}"
                    yield make_road("backend version", through, [method_name])
        if method.quantize:
            quantizer = method.quantize.quantizer
            for name in _select(QUANTIZERS[quantizer].host.distributions, matches):
                if name not in CORE:
                    through = f"{name}, of {quantizer}"
                    yield make_road("backend version", through, [method_name])


def _select(distributions: Iterable[str], matches: Matches) -> list[str]:
    return [name for name in distributions if matches(canonicalize_name(name))]
