"""The code digests of keys, as if the pipeline's files had changed."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

import pipeline
from pipeline.store import toolchain
from pipeline.store.own_code import hash_own_files

BASE = Path(pipeline.__file__).parents[1]


@cache
def read_own_digests() -> Mapping[str, str]:
    """Return the digests of the pipeline's files, keyed by path."""
    return hash_own_files(BASE)


def read_codes(kinds: Iterable[str], *changed: str) -> dict[str, str]:
    """Return the code digest of each kind of key, as if the `changed` files had other content."""
    digests = {**read_own_digests(), **dict.fromkeys(changed, "changed")}
    assert digests.keys() == read_own_digests().keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "_own_digests", lambda: digests)
        patch.setattr(toolchain, "_room", cache(toolchain._room.__wrapped__))
        patch.setattr(toolchain, "code", cache(toolchain.code.__wrapped__))
        return {kind: toolchain.code(kind) for kind in kinds}
