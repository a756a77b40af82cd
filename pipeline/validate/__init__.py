"""Validates that a package is the same function as its source programs."""
