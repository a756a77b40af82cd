"""Packages damaged on purpose, to find out what validation misses.

A damage (`weights`, `operators`, `structure`) is a function of a package taken apart (`parts`) and
a random generator; the same seed gives the same damage. `registry` names the damages, `judge`
returns validation's verdict on one, and `python -m tests.mutations` prints the table of all.
"""
