"""Signing: the Ed25519 keys of a workspace, for the features that sign or verify signatures.

The core signs nothing; deleting this folder leaves builds without a remote and attestations.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "signing",
    "sign and verify results in a remote cache, and attestations",
    read_key_paths="pipeline.features.signing.keys:read_key_paths",
    load_keys="pipeline.features.signing.keys:load_keys",
)
