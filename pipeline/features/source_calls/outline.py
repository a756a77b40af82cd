"""The form of a source call's stored result, which doit itself reads, without torch."""

from __future__ import annotations

from pipeline.store.results import CONSTANT_METHODS

((_, _VALUE),) = CONSTANT_METHODS
SOURCE_CALL = {"outputs": _VALUE}
