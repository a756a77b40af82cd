"""Differences of two keys in words: the file, the config key, the tensor, the library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline.plan.reads import WHOLE_ENVIRONMENT, is_inside
from pipeline.plan.shared_state import WHERE
from pipeline.store.digest import Digest
from pipeline.store.json_diff import ABSENT, Difference, diff_json, show_value

Find = Callable[[Digest], Mapping[str, Any] | None]
_MOST_NAMES = 5


def describe_differences(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    find_parts: Find,
    file: str,
    find_key: Find = lambda action: None,
) -> Iterator[str]:
    """Describe how two keys of one kind of action differ, a line each.

    Args:
        find_parts: returns what is known of a program's parts, by its digest.
        file: the name of the model's source.
        find_key: returns the key of an action that one of the keys names, by its digest.
    """

    def describe(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
        for each in diff_json(_flat(old), _flat(new)):
            match each.path:
                case ("methods" | "programs", method, "program"):
                    yield from _describe_program(method, each, find_parts)
                case ("methods", method, "quantize") if _are_digests(each):
                    before, after = (value and find_key(value) for value in (each.old, each.new))
                    if before is None or after is None:
                        yield f"quantization of {method} {_verb(each)}"
                    else:
                        yield from describe(before, after)
                case ("measured" | "unfollowed", *_):
                    continue
                case ("methods", _, "names") if None in (each.old, each.new):
                    continue  # they count by now, or no more, for what the config says
                case _:
                    yield _describe(each, file)

    yield from dict.fromkeys(describe(old, new))


def _describe(each: Difference, file: str) -> str:
    """Describe a difference of what is no program and no other action."""
    shown = f"{show_value(each.old)} -> {show_value(each.new)}"
    match each.path:
        case ("toolchain", name) if name.startswith("$"):
            return f"the variable {name[1:]} {_verb(each)}"
        case ("toolchain", name) if name.endswith("customize"):
            return f"{name}.py, which Python runs at its start, {_verb(each)}"
        case ("toolchain", library):
            return f"library {library}: {shown}"
        case ("code[0]" | "code[1]",):
            return "pte-pipeline's own code changed"
        case ("host", *rest):
            return f"this machine, {'.'.join(rest)}: {shown}"
        case ("hash_seed",):
            return f"PYTHONHASHSEED: {shown}"
        case ("only",):
            last = "all methods were" if each.old is ABSENT else f"only {each.old} was"
            return f"{last} validated last"
        case ("source",):
            return f"{file} changed"
        case ("reads", what, name, *_):
            return _describe_read(what, name.removesuffix("[0]"), each)
        case ("reads", *_):
            return "what it reads changed"
        case ("files", name):
            return f"the package's {name} {_verb(each)}"
        case ("compiles", unit):
            return f"the object of {unit} {_verb(each)}"
        case ("methods", method, "names"):
            return f"names of values or classes in {method} changed"
        case ("methods", method, "files", place):
            where = f"methods.{method}.{place.removesuffix('[0]')}"
            return f"the file of config {where} {_verb(each)}"
        case ("methods", method, "calibration" | "calibration[0]", *_):
            return f"calibration inputs of {method} {_verb(each)}"
        case ("programs", method, what) if what.startswith("examples"):
            return f"example inputs of {method} {_verb(each)}"
        case ("programs", method, "reference"):
            return f"what the reference of {method} gives {_verb(each)}"
        case ("programs", method, what) if what.startswith("golden"):
            return f"the file of recorded outputs of {method} {_verb(each)}"
        case ("content", _) | ("methods", _, "content"):
            return f"{file}, whose lines the object or the ETRecord holds, {_verb(each)}"
        case ("operator_inputs", library, name):
            return f"{name}, of the operators in {library}, {_verb(each)}"
        case ("operator_inputs", library):
            return f"the library of operators {library} {_verb(each)}"
        case (place, *_) if place.startswith("operator"):
            return "libraries of operators changed"
        case ("passes", reference, name):
            return f"{name}, of the pass {reference}, {_verb(each)}"
        case ("passes", *_):
            return "passes of the config changed"
        case (place,) if place.startswith("file_order"):
            return "the order of the files in emit.external_weights or external_files changed"
        case ("places", *_):
            return "the config's lines moved"
        case ("sources" | "configs", path):
            return f"{path}, whose lines the report quotes, {_verb(each)}"
        case ("baseline",):
            return f"the baseline {_verb(each)}"
        case ("keep_ranges", *method):
            where = ".".join(("methods", *method, "edge.keep_ranges"))
        case ("delegates_beside",):
            return "whether only other methods have partitioners changed"
        case ("metadata", "revision") if each.old and each.new:
            return f"the commit that metadata name: {shown}"
        case ("metadata", "revision"):
            where = "emit.metadata_revision"
        case ("metadata", "config"):
            return "the config, whose digest metadata name, changed"
        case ("metadata", *_):
            where = "emit.metadata"
        case ("etrecord",):
            where = "emit.etrecord"
        case ("family", "objects"):
            return "what its family shares is chosen among other weights"
        case ("held_to", "share_mutable_buffers"):
            where = WHERE
        case ("held_to", "family"):
            return "files of its family changed"
        case ("held_to", "requires_baseline"):
            return "gates that compare with a baseline need one in CI only"
        case ("held_to" | "settings", *rest):
            where = ".".join(("validate", *rest))
        case path:
            where = ".".join(path)
    if each.old is ABSENT or each.new is ABSENT:
        return f"config {where} {_verb(each)}"
    return f"config {where}: {shown}"


def _describe_read(what: str, name: str, each: Difference) -> str:
    """Describe a difference of what an export reads."""
    place = os.path.basename(name) + f" (outside the workspace, {name})"
    place = name if is_inside(name) else place
    match what:
        case "environment" if name == WHOLE_ENVIRONMENT:
            return "environment variables were set or unset"
        case "environment":
            return f"environment variable {name} {_verb(each, 'is set', 'is not set any more')}"
        case "modules":
            places = each.new if isinstance(each.new, list) else [each.new]
            found = ", ".join(place for place in places if isinstance(place, str))
            return f"module {name} is in {found}" if found else f"module {name} is gone"
        case "listings":
            return f"listing of {place}/ changed"
        case "links":
            return f"link {place} {_verb(each, 'appeared')}"
        case _ if each.old is ABSENT or each.new is ABSENT:  # runs that went different ways
            return f"{place} is {'' if each.old is ABSENT else 'not '}read"
    return f"{place} {_verb(each, 'appeared')}"


def _flat(key: Mapping[str, Any]) -> Mapping[str, Any]:
    """Lay the key of what a validation measures over its own."""
    measured = key.get("measured", {})
    return {**key, **measured, "code": [key.get("code"), measured.get("code")]}


def _are_digests(each: Difference) -> bool:
    """Return whether a compile key names quantize actions here."""
    return all(isinstance(value, str | None) for value in (each.old, each.new))


def _describe_program(method: str, each: Difference, find_parts: Find) -> Iterator[str]:
    old = find_parts(Digest(each.old)) if isinstance(each.old, str) else None
    new = find_parts(Digest(each.new)) if isinstance(each.new, str) else None
    if old is None or new is None:
        yield f"the program of {method} {_verb(each)}"
        return
    lines = [*_describe_parts(old, new)] or ["shapes, metadata or wiring of its graph changed"]
    yield from (f"{method}: {line}" for line in lines)


def _describe_parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for what, noun in (("tensors", "tensor"), ("modules", "operators of module")):
        changed = [(d.path[-1], _verb(d)) for d in diff_json(old[what], new[what])]
        for name, verb in changed[:_MOST_NAMES]:
            yield f"{noun} {name or 'at the top'} {verb}"
        if len(changed) > _MOST_NAMES:
            yield f"and {len(changed) - _MOST_NAMES} more {what}"
    for limits in diff_json(old["ranges"], new["ranges"]):
        where = ".".join(limits.path)
        yield f"range of {where}: {show_value(limits.old)} -> {show_value(limits.new)}"
    for what, words in (
        ("signature", "what it takes and returns"),
        ("call", "its call specification"),
        ("schema", "the version of the serialized program"),
    ):
        if old[what] != new[what]:
            yield f"{words} changed"


def _verb(each: Difference, new: str = "is new", gone: str = "is gone") -> str:
    if each.old is ABSENT or each.old is None:
        return new
    return gone if each.new is ABSENT or each.new is None else "changed"
