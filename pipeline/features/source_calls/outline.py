"""The form of a source call's stored result, which doit itself reads, without torch."""

from __future__ import annotations

from pipeline.store.results import CONSTANT_METHODS

((_, _VALUE),) = CONSTANT_METHODS
# `bodies` are the names of the bodies of control flow that the call ran.
SOURCE_CALL = {"outputs": _VALUE, "bodies": list[str]}
