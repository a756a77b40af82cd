"""Limits that a package must keep to, and what it is compared with."""
