"""The form of the results that the store keeps about a hub's models."""

from __future__ import annotations

# For a model at a commit: the digest of each file, by path.
HUB_FILES = {"files": dict[str, str]}
