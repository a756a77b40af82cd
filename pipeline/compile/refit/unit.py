"""New weights in a compiled unit: the object and the facts that compiling would give, without it.

All here is JSON as the store keeps it, and bytes: no torch. A recipe belongs to a base, a result
that was compiled while its constants were watched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.compile.refit.arrays import Array, UnknownValueError, View, logical_bytes, look
from pipeline.compile.refit.forms import find_forms
from pipeline.compile.refit.recipes import (
    UNKNOWN,
    Evaluation,
    find_sources,
    rests_on_unknown,
    taken_steps,
)
from pipeline.store.digest import Digest, hash_bytes, hash_json

Json = Mapping[str, Any]
_KEY = re.compile(rb"[0-9a-f]{64}")  # SHA-256, by which XNNPACK's payloads name their data
_DIFFERENT = (
    "the objects of the last two weights differ in more than weights, as they do where constants "
    "are equal by chance"
)
_GROUPS = ("constants", "mutable", "delegates", "external_constants")


class CannotRefitError(Exception):
    """New weights can't be put into a result: something depends on them that may be otherwise."""


@dataclass(frozen=True)
class Recipe:
    """How the parts of a result come from constants.

    Attributes:
        steps: as `Evaluation` takes them.
        guards: views of which Python read values, with their digest and who read them.
        blobs: by blob of the base's object, the steps whose storages it holds; None among them
            stands for bytes that no constant went into.
        described: by digest of a tensor in the base's description of constants, its views.
    """

    steps: Sequence[Json]
    guards: Sequence[Json]
    blobs: Mapping[Digest, Sequence[int | None]]
    described: Mapping[Digest, Sequence[Json | None]]

    def name_constants(self, number: int) -> str:
        """Return the names of the constants that a step rests on, for people."""
        names = [self.steps[n]["name"] for n in find_sources(self.steps, number)]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ", ".join(names[:3]) + more


@dataclass
class _Changes:
    """What stands in the place of the parts of a base: blobs, with their bytes put by, and keys."""

    put: Callable[[Any], Digest]
    blobs: dict[Digest, Digest] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    storages: dict[int, Digest] = field(default_factory=dict)  # of steps

    def exchange(self, old: Digest, data: Any, size: int) -> Digest:
        if len(data) != size:
            raise CannotRefitError("a blob would have another size")
        self.blobs[old] = self.put(data)
        return self.blobs[old]

    def check(self, parts: Mapping[Any, Any], what: str) -> None:
        """Raise CannotRefitError where parts that differed are the same now, since tables of a
        program hold each once."""
        if len({*parts.values()}) < len(parts):
            raise CannotRefitError(
                f"two {what} that differed are equal now, by chance or by design"
            )


def refit(
    recipe: Recipe,
    base: Json,
    sources: Callable[[Json], Array],
    read: Callable[[Digest], bytes],
    put: Callable[[Any], Digest],
) -> dict[str, Any]:
    """Return the result that compiling with other weights would give.

    Args:
        base: the result that the recipe was made with.
        sources: returns the storage of a source step, of the new weights.
        read, put: a store's.

    Raises CannotRefitError, which says why.
    """
    try:
        evaluation = Evaluation(recipe.steps, sources)
        _check_guards(recipe, evaluation)
        changes = _Changes(put)
        _make_blobs(recipe, evaluation, base["object"], changes)
        _make_payloads(base["object"], read, changes)
        tensors = _describe_tensors(recipe, evaluation, base, changes)
        return exchange(base, changes.blobs, changes.keys, tensors)
    except UnknownValueError as error:
        raise CannotRefitError(f"numpy does not repeat {error}") from error
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise CannotRefitError("its recipe, of a store or a remote, is no good") from error


def _check_guards(recipe: Recipe, evaluation: Evaluation) -> None:
    """Raise CannotRefitError where a value that Python read is another one now."""
    known: dict[str, Digest] = {}
    for guard in recipe.guards:
        view = View.from_json(guard["view"])
        if (name := repr(view)) not in known:
            known[name] = hash_bytes(logical_bytes(evaluation.values(view)))
        if known[name] != guard["digest"]:
            constants = recipe.name_constants(view.step)
            raise CannotRefitError(f"{guard['where']} reads values of {constants}, which changed")


def _make_blobs(recipe: Recipe, evaluation: Evaluation, made: Json, changes: _Changes) -> None:
    """Make the blobs of an object that hold constants."""
    named = {entry["blob"]["digest"] for entry in _named(made)}
    keyed: dict[Digest, str] = {}
    payloads = _payloads(made)
    for blob in _iter_blobs(made):
        old, size = blob["digest"], blob["size"]
        if old in changes.blobs or old in payloads:
            continue
        makers = recipe.blobs.get(old, ())
        found = set()
        for maker in makers:
            if maker is None:
                found.add(old)
                continue
            data = evaluation.storage(maker).data
            new = hash_bytes(data) if old in changes.blobs else changes.exchange(old, data, size)
            changes.storages[maker] = new
            if old in named and not found:
                keyed[old] = hashlib.sha256(data).hexdigest()
            found.add(new)
        if len(found) > 1:
            constants = ", ".join(recipe.name_constants(m) for m in makers if m is not None)
            raise CannotRefitError(f"{constants} were equal, and were stored once; they differ now")
        changes.blobs.setdefault(old, old)
    for entry in _named(made):
        if (key := keyed.get(entry["blob"]["digest"])) is not None:
            changes.keys[entry["key"]] = entry["key"][:-64] + key
        else:
            changes.keys[entry["key"]] = entry["key"]
    changes.check(changes.blobs, "stored tensors")
    changes.check(changes.keys, "keys of named data")


def _make_payloads(made: Json, read: Callable[[Digest], bytes], changes: _Changes) -> None:
    """Exchange the keys of named data in the payloads of delegates, which have a fixed length."""
    keys = {
        old[-64:].encode(): new[-64:].encode() for old, new in changes.keys.items() if old != new
    }
    payloads = {}
    for blob in made["delegates"]:
        old = blob["digest"]
        data = read(old)
        new = _KEY.sub(lambda match: keys.get(match[0], match[0]), data) if keys else data
        payloads[old] = old if new == data else changes.put(new)
    changes.check(payloads, "payloads")
    changes.blobs |= payloads


def _describe_tensors(
    recipe: Recipe, evaluation: Evaluation, base: Json, changes: _Changes
) -> dict[Digest, tuple[Digest, dict[Digest, int]]]:
    """Return, by digest in the base's description of constants, the new one and its forms."""
    found: dict[Digest, tuple[Digest, dict[Digest, int]]] = {}
    for method in base["methods"].values():
        for old, tensor in method["constants"]["tensors"].items():
            if old in found:
                continue
            news = {}
            for record in recipe.described.get(old, (None,)):
                if record is None:
                    news[old] = tensor["forms"]
                    continue
                view = View.from_json(record)
                storage = evaluation.storage(view.step)
                values = look(storage, view)
                whole = values.flags.c_contiguous and values.nbytes == storage.nbytes
                new = changes.storages.get(view.step) if whole else None
                new = new or hash_bytes(logical_bytes(values))
                if new not in news:
                    news[new] = dict.fromkeys(sorted(find_forms(values, view) - {new}), 1)
            if len(news) > 1:
                names = ", ".join(tensor["names"])
                raise CannotRefitError(f"constants that were equal differ now: {names}")
            ((new, forms),) = news.items()
            found[old] = new, forms
    changes.check({old: new for old, (new, _) in found.items()}, "constants")
    return found


def exchange(
    base: Json,
    blobs: Mapping[Digest, Digest],
    keys: Mapping[str, str],
    tensors: Mapping[Digest, tuple[Digest, Mapping[Digest, int]]],
) -> dict[str, Any]:
    """Return a result with other blobs, keys of named data, and constants in its description."""

    def blob(each: Json) -> dict[str, Any]:
        return {**each, "digest": blobs[each["digest"]]}

    def named(each: Json) -> dict[str, Any]:
        return {**each, "key": keys[each["key"]], "blob": blob(each["blob"])}

    old = base["object"]
    made = {
        **old,
        **{group: [blob(each) for each in old[group]] for group in _GROUPS},
        "named": [named(each) for each in old["named"]],
        "named_external": {t: [named(e) for e in own] for t, own in old["named_external"].items()},
        "keys": {method: [keys[key] for key in own] for method, own in old["keys"].items()},
    }
    methods = {
        name: {**own, "constants": _exchange_constants(own["constants"], blobs, tensors)}
        for name, own in base["methods"].items()
    }
    needed = sorted({made["program"]["digest"], *(each["digest"] for each in _iter_blobs(made))})
    return {**base, "object": made, "methods": methods, "blobs": needed}


def _exchange_constants(
    old: Json,
    blobs: Mapping[Digest, Digest],
    tensors: Mapping[Digest, tuple[Digest, Mapping[Digest, int]]],
) -> dict[str, Any]:
    places = sorted(old["tensors"])  # `consumed` counts in the order of digests
    new = {tensors[d][0]: {**own, "forms": tensors[d][1]} for d, own in old["tensors"].items()}
    order = {each: place for place, each in enumerate(sorted(new))}
    consumed = {
        blobs[payload]: sorted(order[tensors[places[each]][0]] for each in own)
        for payload, own in old["consumed"].items()
    }
    return {"tensors": new, "consumed": consumed}


def _named(made: Json) -> Iterator[Json]:
    yield from made["named"]
    for own in made["named_external"].values():
        yield from own


def _payloads(made: Json) -> set[Digest]:
    return {each["digest"] for each in made["delegates"]}


def _iter_blobs(made: Json) -> Iterator[Json]:
    """Yield the blobs of an object but for that of its program, in the order of their tables."""
    for group in _GROUPS:
        yield from made[group]
    yield from (entry["blob"] for entry in _named(made))


def check_alike(before: Json, after: Json, recipe: Recipe, read: Callable[[Digest], bytes]) -> None:
    """Raise CannotRefitError where two results differ in more than the parts of the second that its
    recipe makes of constants.

    Args:
        read: a store's.
    """
    blobs = _pair(_blob_digests(before["object"]), _blob_digests(after["object"]))
    keys = _pair(*([each["key"] for each in _named(own["object"])] for own in (before, after)))
    payloads = _payloads(before["object"])
    exchanged = {old[-64:].encode(): new[-64:].encode() for old, new in keys.items()}
    for old, new in blobs.items():
        if old in payloads:
            data = _KEY.sub(lambda match: exchanged.get(match[0], match[0]), read(old))
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
    return [each["digest"] for each in _iter_blobs(made)]


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
    sources: Callable[[Json], Array],
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
        data = sources(steps[number])
        view = View(number, "uint8", (len(data),), (1,)).to_json()
        known.append({"view": view, "digest": hash_bytes(data.data), "where": where})
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
