"""Validates that a package computes the same function as its source programs."""
