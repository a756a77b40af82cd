"""Figures of a build that are compared from one build to the next: sizes, delegation, memory,
numerics. Read of JSON records only: the manifest, contents.json and the report of a validation.

What changes from run to run (times, latency) is none of them, and numerics are rounded, so that the
same bytes have the same figures on two machines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from pipeline.store.digest import Digest, of_json

Json = Mapping[str, Any]
# What is above is float32's own rounding, and differs from one processor to the next.
MOST_SQNR = 120.0  # dB


class Tensor(TypedDict):
    """`size` in bytes, as stored."""

    dtype: str
    shape: list[int]
    size: int


class MethodFigures(TypedDict):
    """What is not known is None.

    `nodes` and `operators` of which `delegated_nodes` and `delegated_operators` run on delegates or
    on a backend's own kernels; `left`: calls left to portable kernels by operator; bytes of
    `planned_memory` over all arenas, of `constants` and of `delegated` payloads and weights; for
    each output the worst `sqnr_db`, at most `MOST_SQNR`, or None where it is undefined; `max_abs`
    is left out where all outputs are as near as float32 goes."""

    nodes: int
    delegated_nodes: int
    operators: int
    delegated_operators: int
    partitions: dict[str, int]
    left: dict[str, int]
    planned_memory: int | None
    constants: int | None
    delegated: int | None
    sqnr_db: list[float | None] | None
    max_abs: float | None


class Figures(TypedDict):
    """`digest` is that of the files, `size` their bytes; `segments` are bytes by kind."""

    digest: Digest
    size: int
    segments: dict[str, int]
    tensors: dict[str, Tensor]
    methods: dict[str, MethodFigures]


def figures_of(
    manifest: Json, contents: Json | None = None, validation: Json | None = None
) -> Figures:
    """What is in none of the records is None there, or empty. Without contents.json, the segments
    are those that the manifest's objects name."""
    files = {name: file["digest"] for name, file in manifest["files"].items()}
    inside = (contents or {}).get("methods", {})
    proved = {each["method"]: each for each in (validation or {}).get("methods", ())}
    return {
        "digest": of_json(files),
        "size": sum(file["size"] for file in manifest["files"].values()),
        "segments": _segments(contents) if contents else _segments_of_objects(manifest),
        "tensors": dict(_tensors((contents or {}).get("tensors", ()))),
        "methods": {
            name: _method(facts["delegation"], inside.get(name, {}), proved.get(name, {}))
            for name, facts in sorted(manifest["methods"].items())
        },
    }


def _segments(contents: Json) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for segment in contents["segments"]:
        sizes[segment["kind"]] += segment["size"]
    return {kind: size for kind, size in sorted(sizes.items()) if size}


def _segments_of_objects(manifest: Json) -> dict[str, int]:
    """Each blob once, as it is linked; the rest of the files is called program."""
    blobs: dict[str, dict[str, int]] = {"constants": {}, "delegate": {}, "named_data": {}}
    for unit in manifest.get("objects", {}).values():
        parts = unit["parts"]
        named = [
            *parts["named"],
            *(each for own in parts["named_external"].values() for each in own),
        ]
        for kind, own in (
            ("constants", [*parts["constants"], *parts["external_constants"]]),
            ("delegate", parts["delegates"]),
            ("named_data", [entry["blob"] for entry in named]),
        ):
            blobs[kind].update((blob["digest"], blob["size"]) for blob in own)
    sizes = {kind: sum(own.values()) for kind, own in blobs.items()}
    whole = sum(file["size"] for file in manifest["files"].values())
    sizes["program"] = max(0, whole - sum(sizes.values()))
    return {kind: size for kind, size in sorted(sizes.items()) if size}


def _tensors(tensors: Sequence[Json]) -> Iterator[tuple[str, Tensor]]:
    """By name; one whose name is another's too, or that has none, gets a number."""
    seen: Counter[str] = Counter()
    for tensor in tensors:
        name = tensor["name"] or "(unnamed)"
        seen[name] += 1
        key = name if seen[name] == 1 else f"{name} #{seen[name]}"
        yield key, {"dtype": tensor["dtype"], "shape": tensor["shape"], "size": tensor["size"]}


def _method(delegation: Json, inside: Json, proved: Json) -> MethodFigures:
    kernels = delegation.get("kernels", {})
    own = Counter({name: n for each in kernels.values() for name, n in each.items()})
    arenas = inside.get("planned_memory")
    sqnr = _sqnr(proved.get("runs", ())) if proved.get("kind") == "program" else None
    return {
        "nodes": delegation["nodes"],
        "delegated_nodes": delegation["delegated_nodes"] + own.total(),
        "operators": delegation["operators"],
        "delegated_operators": delegation["delegated_operators"] + len(own),
        "partitions": dict(sorted(delegation["partitions"].items())),
        "left": dict(sorted(delegation["undelegated"].items())),
        "planned_memory": None if arenas is None else sum(arena["size"] for arena in arenas),
        "constants": inside.get("constants"),
        "delegated": inside.get("delegated"),
        "sqnr_db": sqnr,
        "max_abs": _max_abs(proved, sqnr),
    }


def _sqnr(runs: Sequence[Json]) -> list[float | None] | None:
    """The worst of each output over all runs, but for the cases that were made to be extreme."""
    worst: list[float | None] = []
    for run in [run for run in runs if not run.get("case")] or runs:
        for place, output in enumerate(run["outputs"]):
            worst += [None] * (place + 1 - len(worst))
            figure, known = number(output["sqnr_db"]), worst[place]
            if figure is not None:
                figure = round(min(figure, MOST_SQNR), 1)
                worst[place] = figure if known is None else min(figure, known)
    return worst or None


def _max_abs(proved: Json, sqnr: Sequence[float | None] | None) -> float | None:
    if not sqnr or all(each is None or each >= MOST_SQNR for each in sqnr):
        return None
    found = number(proved.get("max_abs"))
    return None if found is None or math.isinf(found) else float(f"{found:.2g}")


def number(value: float | str | None) -> float | None:
    """A figure of a record, in which infinities are strings."""
    return None if value is None else float(value)


# What changed


class Change(NamedTuple):
    """What was `before` and is `after`; None: was not there, or is no more."""

    what: str
    before: Any
    after: Any

    @property
    def growth(self) -> float:
        return (self.after or 0) - (self.before or 0)


def grown(before: Mapping[str, int | None], after: Mapping[str, int | None]) -> list[Change]:
    """What is more than before, what grew most first."""
    changes = (Change(name, before.get(name), after[name]) for name in after)
    return sorted((c for c in changes if c.growth > 0), key=lambda c: (-c.growth, c.what))


def sizes_of(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: tensor["size"] for name, tensor in tensors.items()}


def method_bytes(figures: Json) -> dict[str, int]:
    """What each method has in constants and in delegates, where that is known."""
    return {
        name: (method["constants"] or 0) + (method["delegated"] or 0)
        for name, method in figures["methods"].items()
        if method["constants"] is not None or method["delegated"] is not None
    }


def share(method: Json) -> float:
    """Of its nodes, that delegates run."""
    return method["delegated_nodes"] / method["nodes"] if method["nodes"] else 1.0


def share_of_operators(method: Json) -> float:
    return method["delegated_operators"] / method["operators"] if method["operators"] else 1.0


def largest(tensors: Mapping[str, Tensor], most: int) -> dict[str, Tensor]:
    ranked = sorted(tensors.items(), key=lambda pair: (-pair[1]["size"], pair[0]))
    return dict(sorted(ranked[:most]))


def why_left(delegation: Json, operator: str) -> str:
    """In which modules calls of an operator were left to portable kernels, and the partitioner's
    reason, as far as the manifest tells; else nothing."""
    own = [call for call in delegation.get("left", ()) if call["operator"] == operator]
    modules = dict.fromkeys(call["module"] for call in own if call["module"])
    reasons = dict.fromkeys(call["reason"] for call in own if call["reason"])
    words = [f"in {', '.join(list(modules)[:2])}"] if modules else []
    words += list(reasons)[:1]
    return f" ({': '.join(words)})" if words else ""


def output_names(signature: Json, number: int) -> list[str]:
    """Of a method's outputs; by their places where the signature does not name each."""
    found = list(_names(signature.get("outputs")))
    return found if len(found) == number else [f"output[{place}]" for place in range(number)]


def _names(tree: Any) -> Iterator[str]:
    """Of the leaves of a tree as signatures have it, in lists that begin with their kind."""
    if isinstance(tree, Mapping):
        yield tree["name"]
    elif isinstance(tree, list):
        for each in tree:
            yield from _names(each)
