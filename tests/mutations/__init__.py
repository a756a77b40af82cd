"""Packages damaged on purpose, to find out what validation does not see.

A damage (`weights`, `operators`, `structure`) is a function of a package taken apart (`parts`) and
of random numbers; the same seed makes the same damage. `registry` names them, `judge` says what
validation makes of one, and `python -m tests.mutations` prints the table of all of them.
"""
