"""Finds config entries that have no effect on a package.

They are files for constants that were not written, and names in options of partitioners that match
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pipeline.config.patterns import WEIGHT_PATTERNS
from pipeline.store.errors import listed

_TAKEN = "its constants went to delegates; `external_weights` moves these too"


def find_unwritten(
    emit: Mapping[str, Any],
    files: Collection[str],
    tensors: Collection[Mapping[str, Any]] | None = None,
) -> Iterator[str]:
    """Yield a sentence for each file for constants that a package lacks, with the reason.

    Args:
        emit: the options as a config resolves them, or as an older manifest has them.
        files: the names of the package's files.
        tensors: the package's tensors, as `contents.json` lists them; None if they aren't known.
    """
    for option in WEIGHT_PATTERNS:
        for file, patterns in dict(emit.get(option, {})).items():
            if f"{file}.ptd" not in files:
                reason = _explain_unwritten(option, patterns, tensors)
                yield f"emit.{option}: there is no {file}.ptd{reason and f': {reason}'}"


def _explain_unwritten(
    option: str, patterns: Sequence[str], tensors: Collection[Mapping[str, Any]] | None
) -> str:
    """Return why no constant went to the file for some patterns, or "" if that isn't known."""
    if tensors is None:
        return ""
    constants = [tensor for tensor in tensors if tensor["where"] != "mutable"]
    if not constants:
        return "the package has no constants; leave out the option"
    fits = WEIGHT_PATTERNS[option]
    fitting = [
        t for t in constants if any(fits(t["name"], pattern) for pattern in patterns)
    ]
    if not fitting:
        return "its patterns match no constant that is still in the package"
    if all(tensor["where"] == "named_data" and _is_apart(tensor) for tensor in fitting):
        return "other files take all constants that its patterns match"
    if any(tensor["where"] == "delegate" for tensor in fitting):
        reason = "its weights are in payloads of backends that take no tags"
        if option == "external_weights":
            return reason
        return _TAKEN
    if option == "external_files" and any(t["where"] == "named_data" for t in fitting):
        return _TAKEN
    return "its patterns match literals in the model's code, which stay in the program"


def _is_apart(tensor: Mapping[str, Any]) -> bool:
    return str(tensor["file"]).endswith(".ptd")


def find_unknown_names(methods: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each option of partitioners with names that match nothing.

    Only methods whose configs list a name are considered for it.

    Args:
        methods: as a manifest has them; `listed` in each holds the findings of `features/reasons`.
    """
    listings = [
        listing
        for _, facts in sorted(methods.items())
        for listing in facts.get("listed", ())
    ]
    fitting = {
        (listing["option"], listing["name"]) for listing in listings if listing["found"]
    }
    unknown: dict[str, dict[str, str]] = {}
    for listing in listings:
        if (listing["option"], listing["name"]) not in fitting:
            unknown.setdefault(listing["option"], {}).setdefault(
                listing["name"],
                listing["hint"],
            )
    for option, hints in unknown.items():
        names = listed(repr(name) for name in hints)
        hint = next(iter(hints.values()))
        yield f"{option} names {names}, which the package does not have; {hint}"
