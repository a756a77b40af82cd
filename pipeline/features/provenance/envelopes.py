"""Signed statements: DSSE envelopes, one per line of a bundle, as in in-toto.

https://github.com/secure-systems-lab/dsse, https://github.com/in-toto/attestation/tree/main/spec/v1
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.store.digest import canonical_json
from pipeline.store.errors import PipelineError, plural, shown
from pipeline.store.forms import check_of

INSTALL = "pip install 'pte-pipeline[attest]'"
MOST_BYTES = 16 << 20  # of a bundle
_MOST_LINES = 100
_PAYLOAD_TYPE = "application/vnd.in-toto+json"


_ENVELOPE = {
    "payload": str,
    "payloadType": str,
    "signatures": [{"keyid": str, "sig": str}],
}


def sign_statement(statement: Mapping[str, Any], keys: Any) -> bytes:
    """Return the line of a bundle that holds a signed statement.

    Raises PipelineError if the library is not installed.
    """
    check_library()
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    # A canonical form gives equal statements equal signatures: Ed25519 draws no random number.
    envelope = Envelope(canonical_json(statement), _PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(keys.signing))
    return canonical_json(envelope.to_dict()) + b"\n"


def open_bundle(bundle: bytes, keys: Any) -> tuple[list[tuple[Any, str]], list[str]]:
    """Return the statements of a bundle that a trusted key signed, and why other lines don't count.

    Each statement comes with the name of its key.
    """
    lines = [line for line in bundle.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        return [], [
            f"has {plural(len(lines), 'line')}, must have at most {_MOST_LINES}"
        ]
    statements: list[tuple[Any, str]] = []
    reasons: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            statements.append(_open(line, keys))
        except ValueError as error:
            reasons.append(f"line {number}: {error}")
    return statements, reasons


def _open(line: bytes, keys: Any) -> tuple[Any, str]:
    """Return the statement of an envelope, and the name of the key that signed it.

    Raises ValueError with a message that says what is wrong.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    found = read_json(line)
    if not check_of(_ENVELOPE, open_fields=True)(found):
        raise ValueError("is not a DSSE envelope")
    if found["payloadType"] != _PAYLOAD_TYPE:
        raise ValueError("is not an in-toto statement")
    if not found["signatures"]:
        raise ValueError("is not signed")
    names = [each["keyid"] for each in found["signatures"]]
    trusted = [SSlibKey.from_crypto(key) for key in keys.trusted.values()]
    # The library alone would only say that no signature is valid.
    if not {key.keyid for key in trusted} & set(names):
        raise ValueError(
            f"is signed by {shown(names[0][:16])}, which is not a trusted key"
        )
    try:
        envelope = Envelope.from_dict(found)
        (signer,) = envelope.verify(trusted, 1)
    except (VerificationError, ValueError) as error:
        raise ValueError("does not match its signature") from error
    return read_json(envelope.payload), signer


def check_library() -> None:
    """Raise PipelineError if the library that reads and signs envelopes is not installed."""
    try:
        import securesystemslib.dsse  # noqa: F401
    except ImportError as error:
        raise PipelineError(f"attestations need securesystemslib: {INSTALL}") from error


def read_json(data: bytes) -> Any:
    """Parse JSON that may come from a stranger. Raises ValueError if it isn't JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error
