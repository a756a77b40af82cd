"""Imports modules from their text, never from bytecode that Python kept beside it.

Python takes a `.pyc` for that of any source of the same size and the same second, so an edit right
after a run would go unseen.
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
    """Loads a module from its text, and writes no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


@contextmanager
def importing_from_text(wanted: Callable[[str], bool]) -> Iterator[None]:
    """Import within the block from the text of modules in all folders that are `wanted`."""
    find = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES), (FromText, SOURCE_SUFFIXES)
    )

    def find_wanted(path: str) -> Any:
        if not wanted(path):
            raise ImportError(path)  # another hook's
        return find(path)

    def forget() -> None:
        for path in filter(wanted, [*sys.path_importer_cache]):
            del sys.path_importer_cache[path]

    forget()
    sys.path_hooks.insert(0, find_wanted)
    try:
        yield
    finally:
        sys.path_hooks.remove(find_wanted)
        forget()
