"""Takes `doit list --json` from doit. Every command line is looked at, so little is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.store.errors import PipelineError


def take_list(
    words: Sequence[str], root: Path
) -> tuple[None, Callable[[], int]] | None:
    """Take `doit list --json` from doit, whose `list` has no JSON; None for other words. It lists
    the packages of all toolchains, in one line."""
    if words[:1] != ["list"] or "--json" not in words:
        return None
    names = [word for word in words[1:] if word != "--json"]
    for word in names:
        if word.startswith("-"):
            raise PipelineError(f"list: --json can't be combined with {word}")

    def print_packages() -> int:
        from pipeline.features.listing.packages import (
            print_list,  # for this command alone
        )

        return print_list(names, root)

    return None, print_packages
