"""Identifiers of generated code, made from the names in a package."""

from __future__ import annotations

import re
from collections.abc import Iterable


def snake(name: str) -> str:
    """Return a name in the style of `states_0_key`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    return _begin("_".join(words).lower() if words else "value")


def camel(name: str) -> str:
    """Return a name in the style of `states0Key`."""
    first, *words = re.findall(r"[A-Za-z0-9]+", name) or ["value"]
    return _begin(first[0].lower() + first[1:] + "".join(map(_capital, words)))


def pascal(name: str) -> str:
    """Return a name in the style of `States0Key`."""
    return _begin(
        "".join(map(_capital, re.findall(r"[A-Za-z0-9]+", name) or ["Value"]))
    )


def _capital(word: str) -> str:
    # Not `capitalize`, which would turn `maxLen` into `Maxlen`.
    return word[0].upper() + word[1:]


def _begin(name: str) -> str:
    """Return a name that doesn't begin with a digit, since no identifier may."""
    return f"m{name}" if name[0].isdigit() else name


def unique(names: Iterable[str], reserved: str) -> list[str]:
    """Return the names, with suffixes where needed to make them unique and not reserved."""
    seen = set(reserved.split())
    identifiers = []
    for name in names:
        identifier = f"{name}_" if name in seen else name
        number = 2
        while identifier in seen:
            identifier = f"{name}_{number}"
            number += 1
        seen.add(identifier)
        identifiers.append(identifier)
    return identifiers
