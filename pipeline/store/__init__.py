"""Digests, atomic files, the store and its remote tier, workspaces, settings. Imports no torch."""

from pipeline.store.store import MissingBlobError as MissingBlobError
from pipeline.store.store import Store as Store
