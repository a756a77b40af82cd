"""Delegation drops: packages without a baseline that delegate less than their last build."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "delegation_drops",
    "report methods of which less is delegated than in the previous build",
    follow_install="pipeline.features.delegation_drops.last_build:follow_install",
)
