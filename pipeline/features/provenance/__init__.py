"""Provenance: statements of what a package was made from, signed, and bills of materials."""

from __future__ import annotations

from pipeline.moments import Command, Feature

ATTEST = Command(
    "attest",
    "write what packages were made from, signed, with their bills of materials",
    "[package ...]",
    more="Of packages that are lowered and validated as they are asked for; signing_key of "
    "the settings signs. The files stand beside the package: provenance of SLSA in "
    "*.intoto.jsonl, a CycloneDX ML-BOM in *.cdx.json.",
    examples=(("doit attest vision", "writes build/vision/vision.pte.intoto.jsonl"),),
    run="pipeline.features.provenance.attest:run",
)
VERIFY = Command(
    "verify",
    "check a folder against the attestations in it, anywhere, without a workspace",
    "folder [public key ...]",
    options={"commit <id>": "the commit of git that all must be built from, in full"},
    more="Keys are Ed25519 public keys in PEM, by default those that the settings trust "
    "(PTE_PIPELINE_TRUSTED_KEYS). All files that an attestation names must be there, reports "
    "aside, beside it, and no others. The exit status is 1 where something is wrong.",
    examples=(
        ("doit verify release key.pub", "whether a release is what was built"),
        (
            "doit verify --commit $(git rev-parse v2) release key.pub",
            "and is no older one",
        ),
    ),
    run="pipeline.features.provenance.verify:run",
    anywhere=True,
)
FEATURE = Feature(
    "provenance",
    "attest what packages were made from, and verify that",
    verbs=(ATTEST, VERIFY),
)
