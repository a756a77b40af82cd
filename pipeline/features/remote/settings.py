"""Reads the settings of the remote tier: its address, and the signers that are trusted."""

from __future__ import annotations

from pathlib import Path

from pipeline.features.remote.files import RemoteFiles
from pipeline.features.remote.keys import read_key_paths
from pipeline.features.remote.remote import RemoteSettings
from pipeline.store.errors import PipelineError
from pipeline.store.settings_reader import TABLE, SettingsReader, open_settings


def read_remote(reader: SettingsReader) -> RemoteSettings | None:
    """Return the settings of a workspace's remote, or None without one. Raises PipelineError."""
    url = reader.get("remote")
    if url is None:
        return None
    default_mode = "read-only" if reader.untrusted else "read-write"
    signing_key, trusted_keys = read_key_paths(reader)
    remote = RemoteSettings(
        url=url,
        writable=reader.get("remote_mode", default_mode) == "read-write",
        signing_key=signing_key,
        trusted_keys=trusted_keys,
        options=reader.get("remote_options", {}),
        timeout=reader.get("remote_timeout", 20.0),
        unsigned=reader.get("remote_trust") == "unsigned",
    )
    _check_trust(remote)
    return remote


def open_files(url: str, root: Path) -> RemoteFiles:
    """Return the files at an address.

    The options of the workspace's remote apply if it has the same protocol. Raises PipelineError.
    """
    reader = open_settings(root)
    protocol = url.partition("://")[0]
    is_alike = str(reader.get("remote", "")).startswith(f"{protocol}://")
    options = reader.get("remote_options", {}) if is_alike else {}
    files = RemoteFiles(url, options, reader.get("remote_timeout", 20.0))
    files.check()
    return files


def _check_trust(remote: RemoteSettings) -> None:
    """Raise PipelineError if the trusted signers are not set, or are set twice."""
    both = "trusted_keys (Ed25519 public keys) or remote_trust = 'unsigned'"
    if remote.signed and remote.unsigned:
        raise PipelineError(f"{TABLE}: has both keys and remote_trust; keep {both}")
    if not (remote.signed or remote.unsigned):
        raise PipelineError(
            f"{TABLE}.remote: no trust setting for the remote; set {both}, which trusts everyone "
            "who can write there (docs/concepts/cache.md)"
        )
