"""Provenance: signed statements of what a package was made from, and bills of materials."""

from __future__ import annotations

from pipeline.moments import Command, Feature

ATTEST = Command(
    "attest",
    "write signed provenance and bills of materials for packages",
    "[package ...]",
    more=(
        "Packages must be lowered and validated as currently configured; the setting signing_key "
        "names the key that signs. The files are written next to the package: SLSA provenance in "
        "*.intoto.jsonl, and a CycloneDX ML-BOM in *.cdx.json."
    ),
    examples=(("doit attest vision", "write build/vision/vision.pte.intoto.jsonl"),),
    run="pipeline.features.provenance.attest:run",
)
VERIFY = Command(
    "verify",
    "check a folder against the attestations in it; needs no workspace",
    "folder [public key ...]",
    options={
        "commit <id>": "the full id of the git commit that all packages must be built from"
    },
    more=(
        "Keys are Ed25519 public keys in PEM, by default those of the setting trusted_keys "
        "(PTE_PIPELINE_TRUSTED_KEYS). The folder of an attestation must contain all files that the "
        "attestation names, except reports, and no other files. The exit status is 1 if a check "
        "fails."
    ),
    examples=(
        ("doit verify release key.pub", "check that a release is what was built"),
        (
            "doit verify --commit $(git rev-parse v2) release key.pub",
            "and that it is from this tag",
        ),
    ),
    run="pipeline.features.provenance.verify:run",
    anywhere=True,
)
FEATURE = Feature(
    "provenance",
    "attest how packages were made, and verify attestations",
    verbs=(ATTEST, VERIFY),
)
