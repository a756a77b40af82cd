"""Features, a folder each: the core can do without them. `pipeline/moments.py` is the contract."""
