"""The signing key and the trusted keys of attestations, read by the feature "signing"."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.moments import call_all
from pipeline.store.errors import PipelineError
from pipeline.store.settings_reader import open_settings


def load_keys(signing_key: Path | None, trusted_keys: Sequence[Path]) -> Any:
    """Return a `features.signing.keys.Keys`.

    Raises PipelineError if a key can't be used, or if the feature is missing.
    """
    # Runs once, or not at all without the feature.
    for keys in call_all("load_keys", signing_key, trusted_keys):
        return keys
    raise PipelineError('this installation has no feature "signing"')


def read_keys(root: Path) -> Any:
    """Return the keys of the workspace at `root`. Raises PipelineError, also for wrong settings."""
    for key_paths in call_all("read_key_paths", open_settings(root)):
        return load_keys(*key_paths)
    raise PipelineError('this installation has no feature "signing"')
