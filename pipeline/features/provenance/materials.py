"""The files and libraries that a package is made from, for its attestation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.plan.actions import Action
from pipeline.plan.golden import find_golden
from pipeline.plan.places import EXECUTABLE
from pipeline.plan.plan import Plan
from pipeline.plan.reads import is_inside
from pipeline.store.digest import Digest
from pipeline.store.distributions import NOT_INSTALLED
from pipeline.store.forms import fits

# A file's name (its path in the workspace if it is inside), its path, and its digest as recorded in
# keys.
Material = tuple[str, Path, Digest]


def find_materials(plan: Plan, package: str) -> list[Material]:
    """Return the files that a package is made from; its config must have no mistakes.

    These are configs, sources, files that the exporter read, files that options name, recorded
    outputs, passes and libraries of operators. They include the files of other packages if their
    weights decide what the family shares.

    Raises SourceError if a source can't be read.
    """
    return sorted(
        {material for each in _makers(plan, package) for material in _find(plan, each)}
    )


def find_toolchain(plan: Plan, package: str) -> dict[str, str]:
    """Return the versions of everything that takes part in building a package without mistakes.

    They include the libraries that its exporter imports and its backends call. Raises SourceError.
    """
    actions: list[Action | None] = [plan.link(package)]
    for each in _makers(plan, package):
        actions += [
            *(plan.compiles(each) or ()),
            *(plan.quantizes(each) or {}).values(),
        ]
        if (export := plan.exporter(each)) is not None:
            actions.append(plan.models.export(export))
    found = [action.key["toolchain"] for action in actions if action is not None]
    every = {name: version for own in found for name, version in own.items()}
    return {
        name: version for name, version in every.items() if version != NOT_INSTALLED
    }


def _makers(plan: Plan, package: str) -> list[str]:
    """Return a package and the packages whose weights its files hold."""
    link = plan.link(package)
    return sorted({package, *(link.inputs.related_compiles if link else ())})


def _find(plan: Plan, package: str) -> Iterator[Material]:
    root, export = plan.workspace.root, str(plan.export(package))
    inputs: dict[str, str | None] = dict(plan.configs.files(package))
    inputs |= dict(plan.inputs.files(package))
    source = plan.models.source(export)
    if source.form == "exporter":
        key = plan.models.export(export).key
        inputs |= {
            **key["reads"]["files"],
            str(source.path.relative_to(root)): key["source"],
        }
    else:
        for method in (plan.methods(package) or {}).values():
            inputs[str(method.archive.relative_to(root))] = method.content
    inputs |= dict(
        find_golden(plan.workspace, export, plan.methods(package) or ()).values()
    )
    for each in plan.inputs.code(package):
        inputs |= each
    yield from _files(plan, inputs)


def _files(plan: Plan, inputs: Mapping[str, str | None]) -> Iterator[Material]:
    """Yield the files among inputs, named as in keys.

    Other inputs are library versions, values of variables, folders, and files that were looked for
    and not found.
    """
    for name, found in inputs.items():
        digest = (found or "").removesuffix(EXECUTABLE)
        if name.startswith(("$", "import ", "lib:")) or not fits(digest, Digest):
            continue
        path = Path(plan.models.finder.places.locate(name))
        material_name = name if is_inside(name) else os.path.basename(name)
        yield material_name, path, Digest(digest)
