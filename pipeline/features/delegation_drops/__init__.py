"""Delegation drops: what a package without a baseline delegates less than in the build before."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "delegation_drops",
    "report what is delegated less than in the previous build",
    follow_install="pipeline.features.delegation_drops.last_build:follow_install",
)
