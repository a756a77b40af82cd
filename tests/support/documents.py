"""A document without line numbers."""

from types import SimpleNamespace

from pipeline.store.errors import Problem

DOCUMENT = SimpleNamespace(
    problem=lambda path, what, known="": Problem("f.yaml", path, what, known)
)
