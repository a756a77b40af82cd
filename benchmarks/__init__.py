"""Benchmarks against the plain script: `python -m benchmarks`. See README.md in this folder."""
