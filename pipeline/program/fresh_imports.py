"""Imports modules from their source text, never from cached bytecode.

Python trusts a `.pyc` if its source has the same size and a modification time in the same second,
so an edit right after a run would go unnoticed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from types import CodeType
from typing import Any


class FromText(SourceFileLoader):
    """A loader that compiles a module from its source text and writes no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


@contextmanager
def importing_from_text(includes: Callable[[str], bool]) -> Iterator[None]:
    """Import modules from source within the context, in the folders that `includes` accepts."""
    find = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES), (FromText, SOURCE_SUFFIXES)
    )

    def find_included(path: str) -> Any:
        if not includes(path):
            raise ImportError(path)  # leaves the folder to the next hook
        return find(path)

    def clear_cache() -> None:
        for path in filter(includes, [*sys.path_importer_cache]):
            del sys.path_importer_cache[path]

    clear_cache()
    sys.path_hooks.insert(0, find_included)
    try:
        yield
    finally:
        sys.path_hooks.remove(find_included)
        clear_cache()
