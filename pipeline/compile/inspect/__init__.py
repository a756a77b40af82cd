"""Describe what every byte of a package is, and which operators were delegated."""
