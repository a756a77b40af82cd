"""The form of the results that the store keeps of models of a hub."""

from __future__ import annotations

# Of a model at a commit: by its path, the digest of each file.
HUB_FILES = {"files": dict[str, str]}
