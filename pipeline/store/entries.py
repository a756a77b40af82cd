"""The entries of actions in a store: their content, their validity and the blobs they name.

An entry is valid if its result fits its key: it has the form that `results.py` declares, and its
fields agree. Every reader, of the store or of a remote, gets a valid entry: the store treats any
other as damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.moments import find_link_files, find_page_files
from pipeline.store import digest
from pipeline.store.digest import Digest, hash_json
from pipeline.store.files import ETRECORD, MANIFEST, REPORT
from pipeline.store.names import are_distinct

# The voucher of an unsigned result.
ANYONE = "anyone"
Json = Mapping[str, Any]
_STAGE = re.compile(r"[\w.+:() -]{1,200}")  # a name that can be shown
_REFERENCE = rb'"([0-9a-f]{64})"'
_REQUIRED = ("key", "result", "seconds")  # fields of an entry


class ActionEntry(NamedTuple):
    """The key and the result of an action, and the wall time that it took in seconds.

    `vouchers` are the names of the keys that signed the entry itself, or any remote result that it
    may derive from. An entry is used only if all of them are trusted; it has none if everything was
    made locally. `stages` maps the action's stages, and the steps within them, to seconds. `peak`
    is the most memory that the action's process held, in bytes, or 0 if unknown.
    """

    key: Mapping[str, Any]
    result: Mapping[str, Any]
    seconds: float
    vouchers: tuple[str, ...] = ()
    stages: Mapping[str, float] = MappingProxyType({})
    peak: int = 0

    def encode(self) -> dict[str, bytes]:
        """Return the canonical forms of the fields, and of a digest of them as `check`.

        Empty fields are left out. `digest.join_fields` makes the record of these.
        """
        fields = {**self._asdict(), "stages": self.stages or {}}
        texts = {
            name: digest.canonical_json(value)
            for name, value in fields.items()
            if value or name in _REQUIRED
        }
        checked = (
            *map(texts.get, _REQUIRED),
            texts.get("stages", b"{}"),
            texts.get("peak"),
        )
        content = b",".join(filter(None, checked))
        texts["check"] = digest.canonical_json(digest.hash_bytes(b"[%b]" % content))
        return texts

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(digest.join_fields(self.encode()))
        return record

    @classmethod
    def from_json(cls, record: Any, action: Digest) -> ActionEntry | None:
        """Read the entry of an action.

        Returns None if the record is damaged or belongs to another action, or if the action can't
        have such a result.
        """
        try:
            vouchers = tuple(record.get("vouchers", ()))
            stages = record.get("stages", {})
            peak = record.get("peak", 0)
            entry = cls(
                record["key"],
                record["result"],
                record["seconds"],
                vouchers,
                stages,
                peak,
            )
            texts = entry.encode()
            whole = (
                digest.canonical_json(record["check"]) == texts["check"]
                and digest.hash_bytes(texts["key"]) == action
            )
        except (AttributeError, ValueError, TypeError, KeyError, RecursionError):
            return None
        measured = (
            _are_seconds([entry.seconds]) and _are_stages(stages) and _is_count(peak)
        )
        return (
            entry
            if whole and measured and fits_action(entry.key, entry.result)
            else None
        )


def _are_stages(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(map(_STAGE.fullmatch, value))
        and _are_seconds(value.values())
    )


def _are_seconds(values: Iterable[Any]) -> bool:
    return all(type(value) in (int, float) and 0 <= value < 1e9 for value in values)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 60


def find_references(content: bytes) -> list[Digest]:
    """Find all strings in a JSON text that can be digests of blobs.

    Some may be other digests; callers skip those that are not in the store.
    """
    return [
        Digest(name.decode()) for name in dict.fromkeys(re.findall(_REFERENCE, content))
    ]


def fits_action(key: Json, result: Any) -> bool:
    """Return whether a value can be the result of the action with this key.

    Which blobs a result names is a matter of trust. That it names blobs, and files that this action
    makes, is checked here.
    """
    # Imported lazily: a run with nothing to do reads no result.
    from pipeline.store.results import check_of_kind

    kind = str(key.get("kind"))
    agrees = _AGREEMENTS.get(kind)
    return check_of_kind(kind)(result) and (agrees is None or agrees(key, result))


def _agrees_programs(key: Json, result: Json) -> bool:
    return are_distinct(program["entry"] for program in result["programs"])


def _agrees_export(key: Json, result: Json) -> bool:
    methods = result["methods"]
    names = [method["name"] for method in methods]
    names += [name for name, _ in result["constant_methods"]]
    for method in methods:
        batches = method["batches"]
        if method["calibration"] != (hash_json(batches) if batches else None):
            return False
    return (
        bool(methods)
        and are_distinct(method["name"] for method in methods)
        and len({*names}) == len(names)
    )


def _agrees_quantize(key: Json, result: Json) -> bool:
    return bool(result["blobs"] == [result["program"]])


def _agrees_compile(key: Json, result: Json) -> bool:
    parts, methods = result["object"], result["methods"]
    named = _list_named_blobs(parts)
    blobs = [
        parts["program"],
        *(entry["blob"] for entry in named),
        *result["etrecord"].values(),
    ]
    for group in ("constants", "mutable", "delegates", "external_constants"):
        blobs += parts[group]
    external = [place for pairs in parts["external"].values() for _, place in pairs]
    return (
        methods.keys() == key["methods"].keys()
        and parts["keys"].keys() in (set(), set(methods))
        and result["blobs"] == sorted({blob["digest"] for blob in blobs})
        and all(place < len(parts["external_constants"]) for place in external)
        and all(map(_agrees_method, methods.values()))
        and all(map(_is_placeable, named))
        and are_distinct({*parts["external"], *parts["named_external"]})
    )


def _list_named_blobs(parts: Json) -> list[Json]:
    named = list(parts["named"])
    for entries in parts["named_external"].values():
        named += entries
    return named


def _agrees_method(method: Json) -> bool:
    """Return whether a compiled method has every delegation field and only valid constants.

    The fields are those that the core writes; a constant is valid if the method has it.
    """
    from pipeline.store.compiled import DELEGATION

    required = {name.removesuffix("?") for name in DELEGATION}
    required -= {"kernels", "boundary", "estimates"}
    constants = method["constants"]
    for places in constants["consumed"].values():
        if max(places, default=-1) >= len(constants["tensors"]):
            return False
    return bool(method["delegation"].keys() >= required)


def _agrees_refit(key: Json, result: Json) -> bool:
    return bool(result["proven"] == (result["recipe"] is not None))


def _agrees_preprocess(key: Json, result: Json) -> bool:
    for partition in result["results"]:
        if not all(_is_placeable(entry) for _, entry in partition["named"] or ()):
            return False
    return True


def _is_placeable(named: Json) -> bool:
    """Return whether the alignment of named data is a power of two, up to a page of 64 KiB."""
    alignment = named["alignment"]
    return bool(0 < alignment <= 1 << 16 and alignment & (alignment - 1) == 0)


def _agrees_link(key: Json, result: Json) -> bool:
    stem = key.get("file", key["model"])  # older versions named it after the model
    files = result["files"]
    required = {f"{stem}.pte", MANIFEST, *find_link_files()}
    optional = files.keys() - required - {ETRECORD}
    program_files = {name for name in files if name.endswith((".pte", ".ptd"))}
    return (
        required <= files.keys()
        and all(name.endswith(".ptd") for name in optional)
        and are_distinct(files)
        and result.get("joined", {}).keys() <= program_files
    )


def _agrees_measure(key: Json, result: Json) -> bool:
    return bool(result["blobs"]) and bool(result["record"] == result["blobs"][0])


def report_names() -> frozenset[str]:
    """Return the names of the files that a report is rendered to, including the features' pages."""
    return frozenset({REPORT, *find_page_files()})


def _agrees_validate(key: Json, result: Json) -> bool:
    measured = key["measured"]
    bundles = {
        f"{n.removesuffix('.pte')}.bpte"
        for n in measured["files"]
        if n.endswith(".pte")
    }
    names = result["files"].keys()
    are_all = names - bundles == report_names()
    return are_all and result["facts"]["measured"] == hash_json(measured)


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
