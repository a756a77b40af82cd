"""Export actions: a model's exporter, and everything that it read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.plan.actions import Action
from pipeline.plan.declared import Declared
from pipeline.plan.kinds.parts import (
    NOTHING,
    Key,
    Libraries,
    common_fields,
    operator_fields,
)
from pipeline.plan.kinds.words import show_place
from pipeline.plan.reads import WHOLE_ENVIRONMENT, Surroundings
from pipeline.program.constant_values import find_blobs
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import listed
from pipeline.store.json_diff import ABSENT, Difference
from pipeline.store.toolchain import hash_seed, processor
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
_MOST_VARIABLES = 5  # named in a message


@dataclass(frozen=True, eq=False, repr=False)  # generating __eq__ and __repr__ is slow
class ExportInputs:
    """The inputs of an export.

    Attributes:
        model: the name of the model with its parameters, as given by `name_export`.
        path: the path of the exporter in the workspace.
        source: the digest of the exporter.
        reads: what was found at the places that the exporter read, by `plan.reads.Finder.find`.
        distributions: the distributions whose versions count.
        surroundings: the process that planned the export.
        declared: the inputs that the exporter declares, if any.
        unfollowed: operations of its last run that can't be tracked, a line each. If there are any,
            the exporter runs again in every run.
        parameters: the parameters of `export_methods`, which the action's name contains.
    """

    model: str
    path: str
    source: Digest
    surroundings: Surroundings
    reads: Json = field(default_factory=dict)
    distributions: Sequence[str] = ()
    declared: Declared | None = None
    unfollowed: tuple[str, ...] = ()
    parameters: Json = field(default_factory=dict)
    libraries: Libraries = ()

    sources: ClassVar[Mapping[str, MethodSource]] = NOTHING
    configs: ClassVar[Mapping[str, Any]] = NOTHING
    references: ClassVar[Sequence[str]] = ()
    results: ClassVar[Sequence[Digest]] = ()

    def renewed(self, workspace: Workspace) -> ExportInputs:
        """Return the same inputs: an export stays on the machine that planned it."""
        return self


def export_action(inputs: ExportInputs) -> Action[ExportInputs]:
    """Return the action that exports a model."""
    return Action("export", inputs.model, None, None, export_key(inputs), inputs)


def export_key(inputs: ExportInputs) -> Key:
    key = common_fields("export", inputs.distributions)
    key |= {"model": inputs.model, "source": inputs.source, "reads": inputs.reads}
    key |= operator_fields(inputs.libraries)
    key["hash_seed"] = hash_seed()
    key["processor"] = processor()
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        key["encoding"] = encoding  # of names and variables; content is UTF-8
    if inputs.unfollowed:  # so that nobody else gets its result
        key["unfollowed"] = list(inputs.unfollowed)
    return key


def reads_key(model: str, source: Digest) -> Key:
    """Return the key of the record of the places that an exporter's last runs read.

    The record says where to look, not what was found, so neither the toolchain nor our code is part
    of the key.
    """
    return {"kind": "reads", "model": model, "source": source, "version": 2}


def find_exported_blobs(result: Json) -> Iterator[Digest]:
    """Yield the blobs that the result of an export needs.

    They are the archive, the methods' example inputs, references and batches, and the tensors that
    constant methods return.
    """
    yield result["archive"]
    for _, value in result["constant_methods"]:
        yield from find_blobs(value)
    for method in result["methods"]:
        yield from filter(None, (method["examples"], method["reference"]))
        yield from method["batches"]


def read_export(fields: Json) -> ExportInputs:
    """Return export inputs from their fields, which are JSON."""
    around = fields["surroundings"]
    declared = fields["declared"]
    records: dict[str, Any] = {
        "surroundings": Surroundings(around["environment"], tuple(around["search"])),
        "declared": declared
        and Declared(**{n: tuple(names) for n, names in declared.items()}),
        "unfollowed": tuple(fields["unfollowed"]),
    }
    return ExportInputs(**{**fields, **records})


def describe_export(difference: Difference, file: str) -> str | None:
    """Describe a difference in a field that only export keys have; return None for any other."""
    match difference.path:
        case ("hash_seed",):
            return f"PYTHONHASHSEED: {difference.values}"
        case ("processor" | "encoding" as name,):
            return f"{name}: {difference.values}"
        case ("source",):
            return f"{file} changed"
        case ("reads", kind, name, *_):
            return _describe_read(kind, name.removesuffix("[0]"), difference)
        case ("reads", *_):
            return "what it reads changed"
        case ("unfollowed", *_):
            return ""
    return None


def _describe_variables(names_read: str, old: object, new: object) -> str:
    """Name the environment variables that were set or unset, of those that the exporter listed.

    The exporter listed `*` or `NUMBA_*`. If only one of the two runs did, no variables are named.
    """
    scope = f"all {names_read}".removesuffix(" *")
    if not (isinstance(old, str) and isinstance(new, str)):
        return f"environment variables: only one of the runs read {scope}"
    before, now = set(old.split()), set(new.split())
    changes = []
    for names, change in ((now - before, "set"), (before - now, "unset")):
        if names:
            changes.append(f"{listed(sorted(names), _MOST_VARIABLES)} {change}")
    return f"environment variables (the exporter reads {scope}): {', '.join(changes)}"


def _describe_read(kind: str, name: str, difference: Difference) -> str:
    place = show_place(name)
    match kind:
        case "environment" if name.endswith(WHOLE_ENVIRONMENT):
            return _describe_variables(name, difference.old, difference.new)
        case "environment":
            change = difference.change("is set", "is no longer set")
            return f"environment variable {name} {change}"
        case "modules":
            if isinstance(difference.new, list):
                places = difference.new
            else:
                places = [difference.new]
            where = ", ".join(place for place in places if isinstance(place, str))
            if where:
                return f"module {name} is in {where}"
            return f"module {name} is gone"
        case "listings":
            return f"listing of {place}/ changed"
        case "links":
            return f"link {place} {difference.change('appeared')}"
    if difference.old is ABSENT:  # the two runs took different paths
        return f"{place} is read"
    if difference.new is ABSENT:
        return f"{place} is not read"
    return f"{place} {difference.change('appeared')}"
