"""The registry of preprocess functions, and the cache of their results."""
