"""Digests, atomic files, the store and its remote tier, the workspace, its settings. No torch."""

from pipeline.store.store import MissingBlobError as MissingBlobError
from pipeline.store.store import Store as Store
