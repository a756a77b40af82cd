"""The keys of a remote, which another feature reads, signs with and checks signatures by.

Without that feature no remote is opened, since nothing could tell whose results it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.moments import call_all
from pipeline.store.errors import PipelineError
from pipeline.store.settings_reader import SettingsReader

_LACK = 'a remote needs keys, and this installation has no feature "signing"; unset it'


def read_key_paths(reader: SettingsReader) -> tuple[Path | None, tuple[Path, ...]]:
    """Return the paths of the signing key and of the trusted ones. Raises PipelineError, also
    without the feature."""
    for key_paths in call_all("read_key_paths", reader):
        return key_paths  # type: ignore[no-any-return]
    raise PipelineError(_LACK)


def load_keys(signing_key: Path | None, trusted_keys: Sequence[Path]) -> Any:
    """Return a `features.signing.keys.Keys`. Raises PipelineError for a key that can't be used, and
    without the feature."""
    for keys in call_all("load_keys", signing_key, trusted_keys):
        return keys
    raise PipelineError(_LACK)
