"""Tells results that fit their keys from others: by their form, and by what fields agree with.

Whoever reads a result, from the store or from a remote, reads one that fits its key: the store
takes any other for damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.moments import find_link_files
from pipeline.store.digest import hash_json
from pipeline.store.files import ETRECORD, MANIFEST, REPORT
from pipeline.store.forms import fits
from pipeline.store.names import are_distinct
from pipeline.store.results import FORMS

REPORTS = frozenset({REPORT, "report.md", "report.html", "junit.xml"})
Json = Mapping[str, Any]


def _agrees_programs(key: Json, result: Json) -> bool:
    return are_distinct(each["entry"] for each in result["programs"])


def _agrees_export(key: Json, result: Json) -> bool:
    methods = result["methods"]
    calibrations = [hash_json(m["batches"]) if m["batches"] else None for m in methods]
    given = [method["calibration"] for method in methods]
    constants = [name for name, _ in result["constant_methods"]]
    names = [*constants, *(method["name"] for method in methods)]
    return (
        bool(methods)
        and given == calibrations
        and are_distinct(method["name"] for method in methods)
        and len({*names}) == len(names)
    )


def _agrees_quantize(key: Json, result: Json) -> bool:
    return bool(result["blobs"] == [result["program"]])


def _agrees_compile(key: Json, result: Json) -> bool:
    made, methods = result["object"], result["methods"]
    groups = [made["constants"], made["mutable"], made["delegates"], made["external_constants"]]
    named = [made["named"], *made["named_external"].values()]
    blobs = [made["program"], *(each for group in groups for each in group)]
    blobs += [each["blob"] for group in named for each in group]
    needed = {each["digest"] for each in (*blobs, *result["etrecord"].values())}
    external = [place for group in made["external"].values() for _, place in group]
    tensors = [len(method["constants"]["tensors"]) for method in methods.values()]
    consumed = [
        [place for places in method["constants"]["consumed"].values() for place in places]
        for method in methods.values()
    ]
    return (
        methods.keys() == key["methods"].keys()
        and made["keys"].keys() in (set(), set(methods))
        and result["blobs"] == sorted(needed)
        and all(place < len(made["external_constants"]) for place in external)
        and all(max(own, default=-1) < most for own, most in zip(consumed, tensors, strict=True))
        and all(_is_placeable(each) for group in named for each in group)
        and are_distinct({*made["external"], *made["named_external"]})
    )


def _agrees_refit(key: Json, result: Json) -> bool:
    return bool(result["proven"] == (result["recipe"] is not None))


def _agrees_preprocess(key: Json, result: Json) -> bool:
    named = [each for own in result["results"] for _, each in own["named"] or ()]
    return all(map(_is_placeable, named))


def _is_placeable(named: Json) -> bool:
    """Tell whether named data stand at an alignment, a power of two of at most a page of 64 KiB."""
    alignment = named["alignment"]
    return bool(0 < alignment <= 1 << 16 and alignment & (alignment - 1) == 0)


def _agrees_link(key: Json, result: Json) -> bool:
    stem = key.get("file", key["model"])  # earlier versions called it as the model
    required = {f"{stem}.pte", MANIFEST, *find_link_files()}
    others = result["files"].keys() - required - {ETRECORD}
    whole = required <= result["files"].keys() and all(name.endswith(".ptd") for name in others)
    program = {name for name in result["files"] if name.endswith((".pte", ".ptd"))}
    return whole and are_distinct(result["files"]) and result.get("joined", {}).keys() <= program


def _agrees_measure(key: Json, result: Json) -> bool:
    return bool(result["record"] == result["blobs"][0]) if result["blobs"] else False


def _agrees_validate(key: Json, result: Json) -> bool:
    measured = key["measured"]
    bundles = {f"{n.removesuffix('.pte')}.bpte" for n in measured["files"] if n.endswith(".pte")}
    names = result["files"].keys()
    return names - bundles == REPORTS and result["facts"]["measured"] == hash_json(measured)


_AGREEMENTS: Mapping[str, Callable[[Json, Json], bool]] = {
    "programs": _agrees_programs,
    "export": _agrees_export,
    "quantize": _agrees_quantize,
    "compile": _agrees_compile,
    "refit": _agrees_refit,
    "preprocess": _agrees_preprocess,
    "link": _agrees_link,
    "measure": _agrees_measure,
    "validate": _agrees_validate,
}


def fits_action(key: Json, result: Any) -> bool:
    """Tell whether a value can be the result of the action with this key.

    Which blobs a result names is a matter of trust; that it names blobs, and files that this action
    makes, is not.
    """
    kind = str(key.get("kind"))
    if kind not in FORMS:
        return True
    agrees = _AGREEMENTS.get(kind)
    return fits(result, FORMS[kind]) and (agrees is None or agrees(key, result))
