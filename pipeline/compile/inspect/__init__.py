"""Describes every byte of a package, and the delegation of its methods."""
