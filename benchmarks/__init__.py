"""Benchmarks against the plain script: `python -m benchmarks`. See README.md here."""
