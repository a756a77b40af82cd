"""The build's storage: digests, atomic files, the store and its remote tier, the workspace and its
settings. Imports no torch."""

from pipeline.store.store import MissingBlobError as MissingBlobError
from pipeline.store.store import Store as Store
