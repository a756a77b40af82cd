"""Sentences of pages with the codes that `doit help PTE502` explains."""

from __future__ import annotations

from pipeline.moments import find_code


def add_code(sentence: str, kind: str = "validate", most: int = 0) -> str:
    """Return a sentence with the code of its error at the end, if it has one.

    Args:
        kind: that of the action that failed, or `warning`.
        most: the letters from which on the sentence is cut, before its code; 0 for no limit.
    """
    code = find_code(sentence, kind)
    if most and len(sentence) > most:
        sentence = f"{sentence[: most - 1]}…"
    return f"{sentence} [{code}]" if code else sentence


def kind_of(error: str) -> str:
    """Return the kind of the action whose error says why a package is not built, such as `compile`
    of `compile decode: ...`."""
    return error.partition(" ")[0]
