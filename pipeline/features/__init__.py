"""What the core can do without, a folder for each: `pipeline/moments.py` is the contract."""
