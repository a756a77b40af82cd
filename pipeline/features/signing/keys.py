"""The keys of a workspace: loading them, signing, and checking that a trusted key signed.

Other features sign results that they push, and attestations; the core signs nothing.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.errors import PipelineError
from pipeline.store.setting_table import variable_of
from pipeline.store.settings_reader import SettingsReader

_INSTALL = "pip install 'pte-pipeline[remote]'"


@dataclass(frozen=True)
class Keys:
    """Ed25519 keys; the trusted ones are keyed by the digest of their bytes."""

    signing: Any | None
    trusted: Mapping[Digest, Any]

    def sign(self, message: bytes) -> tuple[Digest | None, str | None]:
        """Return the signing key's digest and the base64 signature, or two Nones without a key."""
        if self.signing is None:
            return None, None
        signature = base64.b64encode(self.signing.sign(message)).decode("ascii")
        return _key_name(self.signing.public_key()), signature

    def accept(self, signer: Any, signature: Any, message: bytes) -> bool:
        """Return whether a trusted key signed the message."""
        if not self.trusted:
            return False
        from cryptography.exceptions import InvalidSignature

        # Both values come from strangers: any error in them means that no trusted key signed.
        try:
            self.trusted[signer].verify(
                base64.b64decode(signature, validate=True), message
            )
        except (InvalidSignature, LookupError, TypeError, ValueError):
            return False
        return True


def _key_name(public_key: Any) -> Digest:
    return hash_bytes(public_key.public_bytes_raw())


def load_keys(signing_key: Path | None, trusted_keys: Sequence[Path]) -> Keys:
    """Load the signing key, which is trusted too, and the trusted keys.

    Raises PipelineError if a key can't be used, or if `cryptography` isn't installed.
    """
    if signing_key is None and not trusted_keys:
        return Keys(None, {})
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.serialization import (
            load_pem_private_key,
            load_pem_public_key,
        )
    except ImportError as error:
        raise PipelineError(
            f"keys of the remote need cryptography: {_INSTALL}"
        ) from error

    signing = None
    expected = "public key in PEM; openssl pkey -in key.pem -pubout -out key.pub"
    kind: type = ed25519.Ed25519PublicKey
    public_keys = [
        _load(path, load_pem_public_key, kind, expected) for path in trusted_keys
    ]
    if signing_key is not None:
        expected = "private key in PEM, without a password; "
        expected += "openssl genpkey -algorithm ed25519 -out key.pem"
        parse = partial(load_pem_private_key, password=None)
        signing = _load(signing_key, parse, ed25519.Ed25519PrivateKey, expected)
        public_keys.append(signing.public_key())
    return Keys(signing, {_key_name(key): key for key in public_keys})


def _load(path: Path, parse: Callable[[bytes], Any], kind: type, expected: str) -> Any:
    try:
        key = parse(path.read_bytes())
    except OSError as error:
        raise PipelineError(
            f"{path}: cannot be read ({error.strerror}); must be an Ed25519 {expected}"
        ) from error
    except Exception:  # cryptography raises many kinds
        key = None
    if not isinstance(key, kind):
        raise PipelineError(f"{path}: is not an Ed25519 {expected}")
    return key


def read_key_paths(reader: SettingsReader) -> tuple[Path | None, tuple[Path, ...]]:
    """Return the paths of the signing key and of the trusted keys.

    Raises PipelineError if a setting is invalid, or if the key of an untrusted build is in the
    workspace, where a stranger could replace it.
    """
    signing_key, trusted_keys = (
        reader.get("signing_key"),
        reader.get("trusted_keys", ()),
    )
    if reader.untrusted:
        for key in trusted_keys:
            _check_outside("trusted_keys", key, reader.root)
        if signing_key is not None:
            _check_outside("signing_key", signing_key, reader.root)
    return signing_key, trusted_keys


def _check_outside(name: str, key: Path, root: Path) -> None:
    """Raise PipelineError if a key is in the workspace."""
    # Check both: a link in the workspace may lead out of it, and one outside may lead into it.
    for place in map(Path, (os.path.normpath(key), os.path.realpath(key))):
        if place.is_relative_to(root):
            raise PipelineError(
                f"{variable_of(name)}: {place.relative_to(root)} is in the workspace, which an "
                "untrusted build does not trust; name a file outside"
            )
