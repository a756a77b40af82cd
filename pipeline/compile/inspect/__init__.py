"""Describes what every byte of a package is, and what was delegated."""
