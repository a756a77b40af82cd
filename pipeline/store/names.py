"""The rules for names of files that this package writes, whoever chose the names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from pipeline.store.digest import hash_bytes

# For names of packages and methods. In ExecuTorch a method can have any name; here it is part of
# the names of files, tasks and members of archives.
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
NAME_RULE = "must be letters, digits, '_', '-' and single dots inside"
METHOD_NAME = re.compile(rf"(?!.{{129}}){NAME_PATTERN}")
METHOD_RULE = f"{NAME_RULE}, at most 128 characters"
METADATA = "get_metadata"  # the constant method that `emit.metadata` adds
_LONGEST = 200  # bytes; filesystems take 255, and temporary files have longer names
_LONGEST_STEM = 160
_FORBIDDEN = frozenset('/\\:*?"<>|')


def check_method_name(name: str) -> None:
    """Raise ValueError if a name isn't a valid method name."""
    if not METHOD_NAME.fullmatch(name):
        raise ValueError(f"method name {name[:140]!r}; {METHOD_RULE}")


def is_file_name(name: object) -> bool:
    """Return whether a value is a plain file name.

    This is a single component on any system, not hidden, and without control characters.
    """
    return (
        isinstance(name, str)
        and name.isprintable()  # which also excludes lone surrogates
        and 0 < len(name.encode()) <= _LONGEST
        and _FORBIDDEN.isdisjoint(name)
        and name[0] not in ". "
        and name[-1] not in ". "
    )


def shorten_name(name: str) -> str:
    """Return a name that leaves room for an ending.

    A long name, such as the joined names of methods that are compiled together, is cut and ends in
    a digest of the whole.
    """
    if len(name) <= _LONGEST_STEM:
        return name
    return f"{name[: _LONGEST_STEM - 20]}...{hash_bytes(name.encode())[:16]}"


_is_part = cache(is_file_name)  # packages have files of the same names


def is_file_path(path: object) -> bool:
    """Return whether a value is a relative path of plain file names, separated by slashes."""
    return isinstance(path, str) and all(map(_is_part, path.split("/")))


def are_distinct(names: Iterable[str]) -> bool:
    """Return whether all names denote different files, even on a case-insensitive file system."""
    names = list(names)
    return len({name.casefold() for name in names}) == len(names)
