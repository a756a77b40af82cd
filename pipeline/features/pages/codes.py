"""Appends error codes to the sentences of pages; `doit help PTE502` explains one."""

from __future__ import annotations

from pipeline.moments import find_code


def add_code(sentence: str, kind: str = "validate", most: int = 0) -> str:
    """Return a sentence with its error code appended, if it has one.

    Args:
        kind: kind of the action that failed, or `warning`.
        most: maximum length of the sentence in characters, before the code; 0 for no limit.
    """
    code = find_code(sentence, kind)
    if most and len(sentence) > most:
        sentence = f"{sentence[: most - 1]}…"
    return f"{sentence} [{code}]" if code else sentence


def kind_of(error: str) -> str:
    """Return the kind of action that a build error names: `compile` for `compile decode: ...`."""
    return error.partition(" ")[0]
