"""Learns from a watch's record (`watch.py`) how a compiled unit's parts derive from constants.

It also checks whether two results differ only in such parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipeline.compile.inspect.arrays import View
from pipeline.features.refit.archive_storages import Storage, hash_storage
from pipeline.features.refit.recipes import (
    UNKNOWN,
    find_sources,
    rests_on_unknown,
    taken_steps,
)
from pipeline.features.refit.unit import (
    KEY,
    CannotRefitError,
    Json,
    Recipe,
    exchange,
    iter_blobs,
    iter_named,
    payload_digests,
)
from pipeline.store.digest import Digest, hash_json
from pipeline.store.releases import describe_unknown, installed_versions

_DIFFERENT = (
    "the last two objects differ in more than weights, for example because some constants are "
    "equal by chance"
)


def check_alike(
    before: Json, after: Json, recipe: Recipe, read: Callable[[Digest], bytes]
) -> None:
    """Check that two results differ only in the parts that the recipe makes from constants.

    Raises CannotRefitError if they differ in anything else. The recipe belongs to the second
    result.

    Args:
        read: the method of a store that reads a blob.
    """
    blobs = _pair(_blob_digests(before["object"]), _blob_digests(after["object"]))
    keys = _pair(_named_keys(before["object"]), _named_keys(after["object"]))
    _check_blobs(blobs, keys, payload_digests(before["object"]), recipe, read)
    bare = {**before, "methods": {}}
    if exchange(bare, blobs, keys, {})["object"] != after["object"]:
        raise CannotRefitError(_DIFFERENT)
    if before["methods"].keys() != after["methods"].keys():
        raise CannotRefitError(_DIFFERENT)
    for name, facts in before["methods"].items():
        _check_facts(facts, after["methods"][name], recipe)


def _check_blobs(
    blobs: Mapping[Digest, Digest],
    keys: Mapping[str, str],
    payloads: set[Digest],
    recipe: Recipe,
    read: Callable[[Digest], bytes],
) -> None:
    """Raise CannotRefitError for blobs that differ although no constant went into them."""
    exchanged = {old[-64:].encode(): new[-64:].encode() for old, new in keys.items()}
    for old, new in blobs.items():
        if old in payloads:
            data = KEY.sub(lambda match: exchanged.get(match[0], match[0]), read(old))
            alike = data == read(new)
        else:
            alike = old == new or None not in recipe.blobs.get(new, (None,))
        if not alike:
            raise CannotRefitError("differing bytes have an unknown origin")


def _check_facts(before: Json, after: Json, recipe: Recipe) -> None:
    """Raise CannotRefitError if the facts of a method differ in more than contents."""
    tensors_before = before["constants"]["tensors"]
    tensors_after = after["constants"]["tensors"]
    fixed = set()
    for digest in tensors_after:
        if None in recipe.described.get(digest, (None,)):
            fixed.add(digest)
    if (
        _shape_of_facts(before) != _shape_of_facts(after)
        or not fixed <= tensors_before.keys()
    ):
        raise CannotRefitError(_DIFFERENT)


def _shape_of_facts(facts: Json) -> list[Any]:
    """Return the facts that new weights leave unchanged."""
    constants = facts["constants"]
    tensors = [
        hash_json({**tensor, "forms": None}) for tensor in constants["tensors"].values()
    ]
    return [
        {name: fact for name, fact in facts.items() if name != "constants"},
        sorted(tensors),
        sorted(map(len, constants["consumed"].values())),
    ]


def _blob_digests(unit_object: Json) -> list[Digest]:
    return [blob["digest"] for blob in iter_blobs(unit_object)]


def _named_keys(unit_object: Json) -> list[str]:
    return [entry["key"] for entry in iter_named(unit_object)]


def _pair(before: Sequence[Any], after: Sequence[Any]) -> dict[Any, Any]:
    """Map each element of the first sequence to its counterpart in the second.

    Raises CannotRefitError if the mapping isn't one-to-one.
    """
    pairs = dict(zip(before, after, strict=False))
    whole = len(before) == len(after) and [
        pairs[element] for element in before
    ] == list(after)
    if not whole or len({*pairs.values()}) < len(pairs):
        raise CannotRefitError(_DIFFERENT)
    return pairs


def find_gap(
    gaps: Iterable[str],
    stored: Mapping[Digest, Sequence[int | None]],
    described: Mapping[Digest, Sequence[Any]],
    result: Json,
) -> str:
    """Return the first part of a compilation that was not seen, or "" if all of it was.

    With such a gap, the recipe can only be trusted once another compilation agrees.

    Args:
        gaps, stored, described: as in a `Watch`.
    """
    for gap in gaps:
        return gap
    if unknown := describe_unknown(installed_versions()):
        return unknown
    payloads = payload_digests(result["object"])
    for blob in iter_blobs(result["object"]):
        digest = blob["digest"]
        if blob["size"] and digest not in payloads and digest not in stored:
            return "a blob was written by an unknown serializer"
    for facts in result["methods"].values():
        if not facts["constants"]["tensors"].keys() <= described.keys():
            return "a constant was described before it was recorded"
    return ""


def make_recipe(
    steps: Sequence[Json],
    guards: Sequence[Json],
    stored: Mapping[Digest, Sequence[int | None]],
    described: Mapping[Digest, Sequence[Json | None]],
    result: Json,
    sources: Callable[[Json], Storage],
) -> Recipe:
    """Make the recipe of a result from the watch's record of its compilation (`watch.Watch`).

    A part that depends on a step that can't be repeated is assumed unchanged as long as the
    constants that went into it are the same.
    """
    unknown = rests_on_unknown(steps)
    known_guards: list[Json] = []
    pins: list[tuple[int, str]] = []
    for guard in guards:
        step = guard["view"]["step"]
        if unknown[step]:
            pins.append((step, guard["where"]))
        else:
            known_guards.append(guard)

    def repeatable(number: int | None) -> bool:
        if number is None or not unknown[number]:
            return number is not None
        pins.append((number, _explain_unknown(steps, number)))
        return False

    blobs = {}
    for digest in _blob_digests(result["object"]):
        makers = [
            maker if repeatable(maker) else None for maker in stored.get(digest, ())
        ]
        if makers and makers != [None]:
            blobs[digest] = list(dict.fromkeys(makers))
    tensors = {}
    for facts in result["methods"].values():
        for digest in facts["constants"]["tensors"]:
            views = described.get(digest, ())
            tensors[digest] = [
                v if v and repeatable(v["step"]) else None for v in views
            ]
    known_guards += _guard_sources(steps, pins, sources)
    return _without_unused(Recipe(steps, known_guards, blobs, tensors))


def _guard_sources(
    steps: Sequence[Json],
    pins: Sequence[tuple[int, str]],
    sources: Callable[[Json], Storage],
) -> list[Json]:
    """Return guards for the constants that unrepeatable steps depend on."""
    pinned: dict[tuple[int, str], None] = {}
    for step, where in pins:
        for number in find_sources(steps, step):
            pinned[number, where] = None
    guards: list[Json] = []
    for number, where in pinned:
        storage = sources(steps[number])
        view = View(number, "uint8", (storage.nbytes,), (1,)).to_json()
        guards.append({"view": view, "digest": hash_storage(storage), "where": where})
    return guards


def _explain_unknown(steps: Sequence[Json], number: int) -> str:
    """Return the place of an unrepeatable step: this one, or one that it depends on."""
    waiting = [number]
    while (step := steps[waiting.pop()])["op"] != UNKNOWN:
        waiting += taken_steps(step)
    return f"{step['where']} ({step['what']})"


def _without_unused(recipe: Recipe) -> Recipe:
    """Return a recipe with only the steps that something depends on, and each guard once."""
    numbers = {old: new for new, old in enumerate(_find_used(recipe))}

    def renumber(view: Any) -> Any:
        return (
            {**view, "step": numbers[view["step"]]}
            if isinstance(view, Mapping)
            else view
        )

    steps = []
    for number in numbers:
        step = recipe.steps[number]
        if "args" in step:
            step = {**step, "args": list(map(renumber, step["args"]))}
        steps.append(step)
    guards = {}
    for guard in recipe.guards:
        key = hash_json([guard["view"], guard["digest"]])
        guards[key] = {**guard, "view": renumber(guard["view"])}
    blobs = {}
    for digest, makers in recipe.blobs.items():
        blobs[digest] = [
            None if number is None else numbers[number] for number in makers
        ]
    described = {}
    for digest, views in recipe.described.items():
        described[digest] = list(map(renumber, views))
    return Recipe(steps, list(guards.values()), blobs, described)


def _find_used(recipe: Recipe) -> list[int]:
    """Return the steps that something depends on, in order."""
    waiting = [guard["view"]["step"] for guard in recipe.guards]
    for makers in recipe.blobs.values():
        waiting += [number for number in makers if number is not None]
    for views in recipe.described.values():
        waiting += [view["step"] for view in views if view]
    used: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in used:
            used.add(number)
            waiting += taken_steps(recipe.steps[number])
    return sorted(used)
