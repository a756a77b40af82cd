"""Puts new weights into a compiled unit: makes the results of compiling without compiling.

The results are an object and facts. Everything here is JSON as the store keeps it, and bytes: no
torch. A recipe belongs to a base: a result that was compiled while its constants were watched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from pipeline.compile.inspect.arrays import (
    UnknownValueError,
    View,
    logical_bytes,
)
from pipeline.compile.inspect.forms import find_forms
from pipeline.features.refit.archive_storages import (
    Storage,
    hash_storage,
    iter_pieces,
)
from pipeline.features.refit.recipes import SOURCE, Evaluation, find_sources
from pipeline.store.digest import Digest, hash_bytes, verified

Json = Mapping[str, Any]
# A store's `put_pieces`.
Put: TypeAlias = Callable[[Digest, Callable[[], Iterable[memoryview]]], Digest]
# SHA-256, which XNNPACK's payloads use to name their data.
KEY = re.compile(rb"[0-9a-f]{64}")
_GROUPS = ("constants", "mutable", "delegates", "external_constants")


class CannotRefitError(Exception):
    """New weights can't be put into a result, because something that may change depends on them."""


@dataclass(frozen=True)
class Recipe:
    """The derivation of the parts of a result from constants.

    Attributes:
        steps: in the form that `Evaluation` expects.
        guards: views whose values Python read, with their digests and the places that read them.
        blobs: by blob of the base's object, the steps whose storages it holds; None stands for
            bytes that no constant went into.
        described: by digest of a tensor in the base's description of constants, its views.
    """

    steps: Sequence[Json]
    guards: Sequence[Json]
    blobs: Mapping[Digest, Sequence[int | None]]
    described: Mapping[Digest, Sequence[Json | None]]

    def name_constants(self, number: int) -> str:
        """Return the names of the constants that a step depends on, for people."""
        names = [self.steps[n]["name"] for n in find_sources(self.steps, number)]
        more = ""
        if len(names) > 3:
            more = f" and {len(names) - 3} more"
        return ", ".join(names[:3]) + more


class _KeyedStorage:
    """A storage that is read once, to store it and to compute its key of named data."""

    def __init__(self, data: Storage) -> None:
        self._data = data
        self._key = ""

    def iter_pieces(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces; the key is known after the last."""
        hasher = hashlib.sha256()
        for piece in iter_pieces(self._data):
            hasher.update(piece)
            yield piece
        self._key = hasher.hexdigest()

    def hash_key(self) -> str:
        """Return the key, reading the storage unless that was done. Raises WrongContentError."""
        if not self._key:
            for _ in verified(self.iter_pieces(), hash_storage(self._data)):
                pass
        return self._key


class _Changes:
    """The blobs and keys that replace those of a base; `put` stores the bytes.

    `known_keys` are keys of named data by blob; new ones are added.
    """

    def __init__(self, put: Put, known_keys: dict[Digest, str]) -> None:
        self.put = put
        self.known_keys = known_keys
        self.blobs: dict[Digest, Digest] = {}
        self.keys: dict[str, str] = {}
        self.storages: dict[int, tuple[Digest, int]] = {}  # digest and size by step

    def exchange(self, old: Digest, data: Storage, size: int, has_key: bool) -> Digest:
        if data.nbytes != size:
            raise CannotRefitError("a blob would have another size")
        new = self.blobs[old] = hash_storage(data)
        if not has_key or new == old or new in self.known_keys:
            self.put(new, partial(iter_pieces, data))
        else:
            keyed = _KeyedStorage(data)
            self.put(new, keyed.iter_pieces)
            self.known_keys[new] = keyed.hash_key()
        return new

    def check(self, parts: Mapping[Any, Any], plural_noun: str) -> None:
        """Raise CannotRefitError if parts that used to differ are now equal.

        The tables of a program hold equal parts only once.
        """
        if len({*parts.values()}) < len(parts):
            raise CannotRefitError(
                f"two {plural_noun} that used to differ are now equal"
            )


def refit(
    recipe: Recipe,
    base: Json,
    sources: Callable[[Json], Storage],
    read: Callable[[Digest], bytes],
    put: Put,
    known_keys: dict[Digest, str] | None = None,
) -> dict[str, Any]:
    """Return the result that compiling with other weights would give.

    Args:
        base: the result that the recipe was made with.
        sources: returns the storage of a source step, from the new weights.
        read: the method of a store that reads a blob.
        put: a store's `put_pieces`, or `keep_digest` to find out what would be stored.
        known_keys: keys of named data by blob, to which this function adds new ones.

    Raises:
        WrongContentError: a storage has not the expected bytes.
        CannotRefitError: new weights can't be put into the base; the message says why.
    """
    try:
        evaluation = Evaluation(recipe.steps, sources)
        _check_guards(recipe, evaluation)
        changes = _Changes(put, {} if known_keys is None else known_keys)
        _make_blobs(recipe, evaluation, base["object"], changes)
        _make_payloads(base["object"], read, changes)
        tensors = _describe_tensors(recipe, evaluation, base, changes)
        return exchange(base, changes.blobs, changes.keys, tensors)
    except UnknownValueError as error:
        raise CannotRefitError(f"numpy can't reproduce {error}") from error
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise CannotRefitError("the stored recipe is invalid") from error


def keep_digest(blob: Digest, pieces: Callable[[], Iterable[memoryview]]) -> Digest:
    """Return the digest of a blob without storing it."""
    return blob


def _check_guards(recipe: Recipe, evaluation: Evaluation) -> None:
    """Raise CannotRefitError if a value that Python read has changed."""
    digests: dict[str, Digest] = {}
    for guard in recipe.guards:
        view = View.from_json(guard["view"])
        if (name := repr(view)) not in digests:
            digests[name] = hash_bytes(logical_bytes(evaluation.values(view)))
        if digests[name] != guard["digest"]:
            constants = recipe.name_constants(view.step)
            raise CannotRefitError(
                f"{guard['where']} reads values of {constants}, which changed"
            )


def _make_blobs(
    recipe: Recipe, evaluation: Evaluation, unit_object: Json, changes: _Changes
) -> None:
    """Make the blobs of an object that hold constants."""
    named = {entry["blob"]["digest"] for entry in iter_named(unit_object)}
    payloads = payload_digests(unit_object)
    for blob in iter_blobs(unit_object):
        old = blob["digest"]
        size = blob["size"]
        if old in changes.blobs or old in payloads:
            continue
        makers = recipe.blobs.get(old, ())
        new_digests = set()
        for maker in makers:
            if maker is None:
                new_digests.add(old)
                continue
            data = evaluation.storage(maker)
            if old in changes.blobs:  # equal in the base, and compared below
                new = hash_storage(data)
            else:
                new = changes.exchange(old, data, size, old in named)
            changes.storages[maker] = new, data.nbytes
            new_digests.add(new)
        if len(new_digests) > 1:
            constants = ", ".join(
                recipe.name_constants(m) for m in makers if m is not None
            )
            raise CannotRefitError(
                f"{constants} used to be equal and were stored once; now they differ"
            )
        changes.blobs.setdefault(old, old)
    for entry in iter_named(unit_object):
        stored: Digest = entry["blob"]["digest"]
        exchanged = changes.blobs.get(stored, stored)
        key = entry["key"]
        if exchanged != stored:
            key = key[:-64] + changes.known_keys[exchanged]
        changes.keys[entry["key"]] = key
    changes.check(changes.blobs, "stored tensors")
    changes.check(changes.keys, "keys of named data")


def check_keys(
    recipe: Recipe, unit_object: Json, read: Callable[[Digest], bytes]
) -> None:
    """Raise CannotRefitError if the key of the smallest constant is not its SHA-256.

    The serializer has a known text, which names all constants in the same way.
    """
    constants = [
        entry
        for entry in iter_named(unit_object)
        if entry["blob"]["digest"] in recipe.blobs
    ]
    if constants:
        smallest = min(constants, key=lambda entry: entry["blob"]["size"])
        data = read(smallest["blob"]["digest"])
        if hashlib.sha256(data).hexdigest() != smallest["key"][-64:]:
            raise CannotRefitError("keys of named data are not their SHA-256")


def _make_payloads(
    unit_object: Json, read: Callable[[Digest], bytes], changes: _Changes
) -> None:
    """Exchange the keys of named data, which have a fixed length, in the payloads of delegates."""
    keys = {
        old[-64:].encode(): new[-64:].encode()
        for old, new in changes.keys.items()
        if old != new
    }
    payloads = {}
    for blob in unit_object["delegates"]:
        old = blob["digest"]
        data = read(old)
        new = (
            KEY.sub(lambda match: keys.get(match[0], match[0]), data) if keys else data
        )
        payloads[old] = (
            old if new == data else changes.put(hash_bytes(new), partial(_whole, new))
        )
    changes.check(payloads, "payloads")
    changes.blobs |= payloads


def _whole(data: bytes) -> Iterator[memoryview]:
    yield memoryview(data)


def _describe_tensors(
    recipe: Recipe, evaluation: Evaluation, base: Json, changes: _Changes
) -> dict[Digest, tuple[Digest, dict[Digest, int]]]:
    """Return the new digest and forms of each tensor in the base's description of constants."""
    described: dict[Digest, tuple[Digest, dict[Digest, int]]] = {}
    for method in base["methods"].values():
        for old, tensor in method["constants"]["tensors"].items():
            if old in described:
                continue
            news = {}
            for record in recipe.described.get(old, (None,)):
                if record is None:
                    news[old] = tensor["forms"]
                    continue
                view = View.from_json(record)
                read = partial(evaluation.values, view)
                new, size = changes.storages.get(view.step) or _find_source(
                    recipe, evaluation, view.step
                )
                whole = view.is_contiguous and (view.offset, view.nbytes) == (0, size)
                if new is None or not whole:
                    values = read()
                    new = hash_bytes(logical_bytes(values))
                    read = partial(np.asarray, values)
                if new == old:  # in the form of the first view, as in the base
                    news.setdefault(new, tensor["forms"])
                if new not in news:
                    news[new] = dict.fromkeys(sorted(find_forms(view, read) - {new}), 1)
            if len(news) > 1:
                names = ", ".join(tensor["names"])
                raise CannotRefitError(
                    f"constants that used to be equal now differ: {names}"
                )
            ((new, forms),) = news.items()
            described[old] = new, forms
    changes.check({old: new for old, (new, _) in described.items()}, "constants")
    return described


def _find_source(
    recipe: Recipe, evaluation: Evaluation, number: int
) -> tuple[Digest | None, int]:
    """Return the digest and size of the storage of a source step; of another step, None and 0."""
    if recipe.steps[number]["op"] != SOURCE:
        return None, 0
    storage = evaluation.storage(number)
    return hash_storage(storage), storage.nbytes


def exchange(
    base: Json,
    blobs: Mapping[Digest, Digest],
    keys: Mapping[str, str],
    tensors: Mapping[Digest, tuple[Digest, Mapping[Digest, int]]],
) -> dict[str, Any]:
    """Return a result with other blobs, keys of named data, and described constants."""

    def blob(entry: Json) -> dict[str, Any]:
        return {**entry, "digest": blobs[entry["digest"]]}

    def named(entry: Json) -> dict[str, Any]:
        return {**entry, "key": keys[entry["key"]], "blob": blob(entry["blob"])}

    old = base["object"]
    unit_object = {
        **old,
        **{group: [blob(entry) for entry in old[group]] for group in _GROUPS},
        "named": [named(entry) for entry in old["named"]],
        "named_external": {
            t: [named(e) for e in items] for t, items in old["named_external"].items()
        },
        "keys": {
            method: [keys[key] for key in items]
            for method, items in old["keys"].items()
        },
    }
    methods = {
        name: {
            **items,
            "constants": _exchange_constants(items["constants"], blobs, tensors),
        }
        for name, items in base["methods"].items()
    }
    needed = sorted(
        {
            unit_object["program"]["digest"],
            *(entry["digest"] for entry in iter_blobs(unit_object)),
        }
    )
    return {**base, "object": unit_object, "methods": methods, "blobs": needed}


def _exchange_constants(
    old: Json,
    blobs: Mapping[Digest, Digest],
    tensors: Mapping[Digest, tuple[Digest, Mapping[Digest, int]]],
) -> dict[str, Any]:
    places = sorted(old["tensors"])  # `consumed` counts in the order of digests
    new = {
        tensors[d][0]: {**tensor, "forms": tensors[d][1]}
        for d, tensor in old["tensors"].items()
    }
    order = {digest: place for place, digest in enumerate(sorted(new))}
    consumed = {
        blobs[payload]: sorted(order[tensors[places[digest]][0]] for digest in tensor)
        for payload, tensor in old["consumed"].items()
    }
    return {"tensors": new, "consumed": consumed}


def iter_named(unit_object: Json) -> Iterator[Json]:
    """Yield the named data of an object, including external files."""
    yield from unit_object["named"]
    for entries in unit_object["named_external"].values():
        yield from entries


def payload_digests(unit_object: Json) -> set[Digest]:
    """Return the digests of the payloads of an object's delegates."""
    return {blob["digest"] for blob in unit_object["delegates"]}


def iter_blobs(unit_object: Json) -> Iterator[Json]:
    """Yield the blobs of an object, except its program, in the order of their tables."""
    for group in _GROUPS:
        yield from unit_object[group]
    yield from (entry["blob"] for entry in iter_named(unit_object))
