"""Names of public keys, read without the signing library.

A run with nothing to do needs them, to know which signers are trusted.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from pathlib import Path

from pipeline.store.digest import Digest, hash_bytes

_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----(.*?)-----END", re.DOTALL)
_ED25519 = bytes.fromhex("302a300506032b6570032100")  # what precedes the key in DER
_KEY_SIZE = 32  # bytes


def name_public_key(path: Path) -> Digest | None:
    """Return the name of an Ed25519 public key in PEM (RFC 8410), without importing cryptography.

    Returns None if the file holds no such key.
    """
    with suppress(OSError, ValueError):
        if body := _PEM.search(path.read_bytes()):
            key = base64.b64decode(body[1])
            if key.startswith(_ED25519) and len(key) == len(_ED25519) + _KEY_SIZE:
                return hash_bytes(key[len(_ED25519) :])
    return None
