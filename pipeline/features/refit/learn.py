"""Learns how the parts of a compiled unit come from constants, from what a watch saw (`watch.py`),
and whether two results differ in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.compile.inspect.arrays import Storage, View
from pipeline.features.refit.recipes import UNKNOWN, find_sources, rests_on_unknown, taken_steps
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
from pipeline.store.digest import Digest, hash_json, hash_pieces

_DIFFERENT = (
    "the objects of the last two weights differ in more than weights, as they do where constants "
    "are equal by chance"
)


def check_alike(before: Json, after: Json, recipe: Recipe, read: Callable[[Digest], bytes]) -> None:
    """Raise CannotRefitError where two results differ in more than the parts of the second that its
    recipe makes of constants.

    Args:
        read: a store's.
    """
    blobs = _pair(_blob_digests(before["object"]), _blob_digests(after["object"]))
    keys = _pair(*([each["key"] for each in iter_named(own["object"])] for own in (before, after)))
    payloads = payload_digests(before["object"])
    exchanged = {old[-64:].encode(): new[-64:].encode() for old, new in keys.items()}
    for old, new in blobs.items():
        if old in payloads:
            data = KEY.sub(lambda match: exchanged.get(match[0], match[0]), read(old))
            alike = data == read(new)
        else:
            alike = old == new or None not in recipe.blobs.get(new, (None,))
        if not alike:
            raise CannotRefitError("bytes differ of which it is not known how they come about")
    bare = {**before, "methods": {}}
    if exchange(bare, blobs, keys, {})["object"] != after["object"]:
        raise CannotRefitError(_DIFFERENT)
    if before["methods"].keys() != after["methods"].keys():
        raise CannotRefitError(_DIFFERENT)
    for name, own in before["methods"].items():
        _check_facts(own, after["methods"][name], recipe)


def _check_facts(before: Json, after: Json, recipe: Recipe) -> None:
    known, others = (own["constants"]["tensors"] for own in (before, after))
    facts = [
        [
            {name: fact for name, fact in own.items() if name != "constants"},
            sorted(hash_json({**each, "forms": None}) for each in tensors.values()),
            sorted(map(len, own["constants"]["consumed"].values())),
        ]
        for own, tensors in ((before, known), (after, others))
    ]
    fixed = {each for each in others if None in recipe.described.get(each, (None,))}
    if facts[0] != facts[1] or not fixed <= known.keys():
        raise CannotRefitError(_DIFFERENT)


def _blob_digests(made: Json) -> list[Digest]:
    return [each["digest"] for each in iter_blobs(made)]


def _pair(before: Sequence[Any], after: Sequence[Any]) -> dict[Any, Any]:
    """Return which of the second stands for each of the first. Raises CannotRefitError where some
    that are one in the one are two in the other."""
    pairs = dict(zip(before, after, strict=False))
    whole = len(before) == len(after) and [pairs[each] for each in before] == list(after)
    if not whole or len({*pairs.values()}) < len(pairs):
        raise CannotRefitError(_DIFFERENT)
    return pairs


def make_recipe(
    steps: Sequence[Json],
    guards: Sequence[Json],
    stored: Mapping[Digest, Sequence[int | None]],
    described: Mapping[Digest, Sequence[Json | None]],
    result: Json,
    sources: Callable[[Json], Storage],
) -> Recipe:
    """Make the recipe of a result from what was seen while it was compiled (`watch.Watch`).

    What rests on a step that can't be repeated is taken to be as it is as long as the constants
    that went into it are the same.
    """
    unknown = rests_on_unknown(steps)
    known = [guard for guard in guards if not unknown[guard["view"]["step"]]]
    pins = [(g["view"]["step"], g["where"]) for g in guards if unknown[g["view"]["step"]]]

    def repeatable(number: int | None) -> bool:
        if number is None or not unknown[number]:
            return number is not None
        pins.append((number, _explain_unknown(steps, number)))
        return False

    blobs = {}
    for digest in _blob_digests(result["object"]):
        makers = [maker if repeatable(maker) else None for maker in stored.get(digest, ())]
        if makers and makers != [None]:
            blobs[digest] = list(dict.fromkeys(makers))
    tensors = {}
    for digest in (d for own in result["methods"].values() for d in own["constants"]["tensors"]):
        views = described.get(digest, ())
        tensors[digest] = [v if v and repeatable(v["step"]) else None for v in views]
    pinned = dict.fromkeys((n, where) for step, where in pins for n in find_sources(steps, step))
    for number, where in pinned:
        storage = sources(steps[number])
        view = View(number, "uint8", (storage.nbytes,), (1,)).to_json()
        known.append({"view": view, "digest": hash_pieces(storage.pieces()), "where": where})
    return _without_unused(Recipe(steps, known, blobs, tensors))


def _explain_unknown(steps: Sequence[Json], number: int) -> str:
    """Return where a step that can't be repeated was made, or the one that a step rests on."""
    left = [number]
    while (step := steps[left.pop()])["op"] != UNKNOWN:
        left += taken_steps(step)
    return f"{step['where']} ({step['what']})"


def _without_unused(recipe: Recipe) -> Recipe:
    """Return a recipe with only the steps that something rests on, and each guard once."""
    views = [v for own in recipe.described.values() for v in own if v]
    views += [guard["view"] for guard in recipe.guards]
    used: set[int] = set()
    left = [n for own in recipe.blobs.values() for n in own if n is not None]
    left += [view["step"] for view in views]
    while left:
        if (number := left.pop()) not in used:
            used.add(number)
            left += taken_steps(recipe.steps[number])
    numbers = {old: new for new, old in enumerate(sorted(used))}

    def renumber(view: Any) -> Any:
        return {**view, "step": numbers[view["step"]]} if isinstance(view, Mapping) else view

    steps = [
        {**step, "args": list(map(renumber, step["args"]))} if "args" in step else step
        for step in (recipe.steps[number] for number in sorted(used))
    ]
    guards = {
        hash_json([guard["view"], guard["digest"]]): {**guard, "view": renumber(guard["view"])}
        for guard in recipe.guards
    }
    blobs = {
        digest: [None if number is None else numbers[number] for number in own]
        for digest, own in recipe.blobs.items()
    }
    described = {d: list(map(renumber, own)) for d, own in recipe.described.items()}
    return Recipe(steps, list(guards.values()), blobs, described)
