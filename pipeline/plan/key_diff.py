"""What changed between two keys, in words: the file, the config key, the tensor, the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.store.digest import Digest

PartsOf = Callable[[Digest], Mapping[str, Any] | None]
KeyOf = Callable[[Digest], Mapping[str, Any] | None]
_ABSENT = object()
_MOST_NAMES = 5


class Difference(NamedTuple):
    """`path` leads to it in both keys; what is not in one of them is `_ABSENT` there."""

    path: tuple[str, ...]
    old: Any
    new: Any


def differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys(), key=str):
            before, after = old.get(name, _ABSENT), new.get(name, _ABSENT)
            yield from differences(before, after, (*path, str(name)))
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(
                before, after, (*path[:-1], f"{path[-1] if path else ''}[{index}]")
            )
    elif old != new:
        yield Difference(path, old, new)


def changes(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    parts_of: PartsOf,
    file: str,
    key_of: KeyOf = lambda action: None,
) -> Iterator[str]:
    """What tells two keys of one kind of action apart, a line each.

    Args:
        parts_of: what is known of a program's parts, by its digest.
        file: how the model's source is called.
        key_of: the key of an action that one of the keys names, by its digest, if it is known.
    """
    yield from dict.fromkeys(_changes(old, new, parts_of, file, key_of))


def _changes(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    parts_of: PartsOf,
    file: str,
    key_of: KeyOf,
) -> Iterator[str]:
    for each in differences(_flat(old), _flat(new)):
        match each.path:
            case ("toolchain", library):
                yield f"library {library}: {shown_value(each.old)} -> {shown_value(each.new)}"
            case ("code[0]" | "code[1]",):
                yield "pte-pipeline's own code changed"
            case ("host", *rest):
                shown = f"{shown_value(each.old)} -> {shown_value(each.new)}"
                yield f"this machine, {'.'.join(rest)}: {shown}"
            case ("source",):
                yield f"{file} changed"
            case ("reads", name):
                yield f"{name} {_verb(each)}"
            case ("files", name):
                yield f"the package's {name} {_verb(each)}"
            case ("compiles", unit):
                yield f"the object of {unit} {_verb(each)}"
            case ("methods", method, "program") | ("programs", method, "program"):
                yield from _of_program(method, each, parts_of)
            case ("methods", method, "names"):
                yield f"names of values in {method} changed"
            case ("methods", method, "quantize") if _are_digests(each):
                before, after = (value and key_of(value) for value in (each.old, each.new))
                if before is None or after is None:
                    yield f"quantization of {method} {_verb(each)}"
                else:
                    yield from _changes(before, after, parts_of, file, key_of)
            case ("methods", method, "files", place):
                where = f"methods.{method}.{place.removesuffix('[0]')}"
                yield f"the file of config {where} {_verb(each)}"
            case ("methods", method, "calibration" | "calibration[0]"):
                yield f"calibration inputs of {method} {_verb(each)}"
            case ("programs", method, what) if what.startswith("examples"):
                yield f"example inputs of {method} {_verb(each)}"
            case ("etrecord",):
                yield _of_config(("emit", "etrecord"), each)
            case ("etrecord", _):
                yield f"{file}, whose lines the ETRecord tells, changed"
            case ("measured", *_):
                continue
            case ("baseline",):
                yield f"the baseline {_verb(each)}"
            case ("held_to", *rest):
                yield _of_config(("validate", *rest), each)
            case ("settings", *rest):
                yield _of_config(("validate", *rest), each)
            case _:
                yield _of_config(each.path, each)


def _flat(key: Mapping[str, Any]) -> Mapping[str, Any]:
    """With what a validation measures beside its gates."""
    measured = key.get("measured", {})
    return {**key, **measured, "code": [key.get("code"), measured.get("code")]}


def _are_digests(each: Difference) -> bool:
    """Whether it is a quantize action's digest, as keys of compiling have it."""
    return all(isinstance(value, str | None) for value in (each.old, each.new))


def _of_config(path: tuple[str, ...], each: Difference) -> str:
    where = ".".join(path)
    if each.old is _ABSENT or each.new is _ABSENT:
        return f"config {where} {_verb(each)}"
    return f"config {where}: {shown_value(each.old)} -> {shown_value(each.new)}"


def _of_program(method: str, each: Difference, parts_of: PartsOf) -> Iterator[str]:
    old = parts_of(Digest(each.old)) if isinstance(each.old, str) else None
    new = parts_of(Digest(each.new)) if isinstance(each.new, str) else None
    if old is None or new is None:
        yield f"the program of {method} {_verb(each)}"
        return
    told = False
    for what, of in (("tensors", "tensor"), ("modules", "operators of module")):
        changed = [(d.path[-1], _verb(d)) for d in differences(old[what], new[what])]
        for name, verb in changed[:_MOST_NAMES]:
            yield f"{method}: {of} {name or 'at the top'} {verb}"
        if len(changed) > _MOST_NAMES:
            yield f"{method}: and {len(changed) - _MOST_NAMES} more {what}"
        told = told or bool(changed)
    for limits in differences(old["ranges"], new["ranges"]):
        told = True
        where = ".".join(limits.path)
        yield f"{method}: range of {where}: {shown_value(limits.old)} -> {shown_value(limits.new)}"
    for what, words in (
        ("signature", "what it takes and returns"),
        ("call", "its call specification"),
        ("schema", "the version of the serialized program"),
    ):
        if old[what] != new[what]:
            told = True
            yield f"{method}: {words} changed"
    if not told:
        yield f"{method}: shapes, metadata or wiring of its graph changed"


def _verb(each: Difference) -> str:
    if each.old is _ABSENT or each.old is None:
        return "is new"
    return "is gone" if each.new is _ABSENT or each.new is None else "changed"


def shown_value(value: Any) -> str:
    if value is _ABSENT:
        return "none"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
