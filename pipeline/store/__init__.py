"""The ground: digests, files, the store, the workspace and its settings. No torch."""
