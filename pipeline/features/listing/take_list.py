"""Takes over `doit list --json` from doit. It sees every command line, so it imports little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.store.errors import PipelineError


def take_list(
    words: Sequence[str], root: Path
) -> tuple[None, Callable[[], int]] | None:
    """Take over `doit list --json`, which doit itself can't print; return None for other words.

    The record covers the packages of all toolchains, on one line.

    Raises:
        PipelineError: the command line has another option.
    """
    if words[:1] != ["list"] or "--json" not in words:
        return None
    names = [word for word in words[1:] if word != "--json"]
    for word in names:
        if word.startswith("-"):
            raise PipelineError(f"list: --json can't be combined with {word}")

    def print_packages() -> int:
        from pipeline.features.listing.packages import (
            print_list,  # imported for this command only
        )

        return print_list(names, root)

    return None, print_packages
