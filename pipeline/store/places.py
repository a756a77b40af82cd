"""The layout of a store and of a remote: where each file is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError

README = """\
This folder is the store of pte-pipeline: compiled methods and linked packages, by content.
It can be deleted at any time; missing results are rebuilt.
"""

# The keys whose signatures made remote results trusted, one per line.
VOUCHERS = "vouchers"
CORRECTIONS = "corrections"  # the actions whose results contradicted their archives
TOOLCHAINS = "toolchains"  # environments of workspaces, and links to our code
_FILES = (
    "README",
    "costs.json",
    "history.json",
    "usage.json",
    "index.sqlite3",
    "index.sqlite3-journal",
    VOUCHERS,
    CORRECTIONS,
)
_OWN = ("blobs", "actions", "tmp", "locks", "runs", ".gc.lock", *_FILES)


def blob_name(blob: Digest) -> str:
    """Return the relative path of a blob in a store or a remote."""
    return f"blobs/{blob[:2]}/{blob[2:]}"


def action_name(action: Digest) -> str:
    """Return the relative path of an action's entry in a store or a remote."""
    return f"actions/{action[:2]}/{action[2:]}.json"


def action_of(path: Path) -> Digest:
    """Return the action whose entry is at this path in a store."""
    return Digest(path.parent.name + path.stem)


def describe_remedy(root: Path, problem: str) -> str:
    """Return a sentence on a store that this user can't fully use: the problem and the remedy."""
    is_full = any(os.strerror(code) in problem for code in (errno.ENOSPC, errno.EDQUOT))
    remedy = "share it with a group (docs/guides/scaling.md#a-store-for-several-users)"
    if is_full:
        remedy = "free disk space there"
    return f"store {root}: {problem}; {remedy}, or name another in PTE_PIPELINE_STORE"


def default_root() -> Path:
    """Return `$XDG_CACHE_HOME/pte-pipeline`, which all checkouts of a user share.

    Raises PipelineError if the variable is not set and the user has no home folder.
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise PipelineError(
            "this user has no home folder; set HOME or XDG_CACHE_HOME"
        ) from None
    return Path(cache) / "pte-pipeline"


def own_places(root: Path) -> list[Path]:
    """Return the paths that builds write in a store's folder and in the user's caches."""
    caches = [default_root() / name for name in ("distributions", TOOLCHAINS)]
    return [*(root / name for name in _OWN), *caches]
