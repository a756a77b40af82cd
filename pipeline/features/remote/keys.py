"""The keys of a remote, with which the feature "signing" signs and checks signatures.

Without that feature no remote is opened, because the signers of results couldn't be checked.
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
    """Return the paths of the signing key and the trusted keys.

    Raises PipelineError, also if the feature is missing.
    """
    for key_paths in call_all("read_key_paths", reader):
        return key_paths  # type: ignore[no-any-return]
    raise PipelineError(_LACK)


def load_keys(signing_key: Path | None, trusted_keys: Sequence[Path]) -> Any:
    """Return a `features.signing.keys.Keys`.

    Raises PipelineError if a key can't be used, or if the feature is missing.
    """
    for keys in call_all("load_keys", signing_key, trusted_keys):
        return keys
    raise PipelineError(_LACK)
