"""Adds the remedy for an error's cause to its text, if `table` has one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

from pipeline.features.remedies.table import MACHINE, OF_TRAINING, REMEDIES, Remedy
from pipeline.store.reasons import is_full, iter_causes


def add_remedy(
    text: str, operators: Sequence[str] = (), error: BaseException | None = None
) -> str:
    """Return the text of an error with its remedy, if one is known.

    Args:
        operators: other operators that the error applies to, besides the one in the text.
        error: the error itself, if available.
    """
    error = error or Exception()
    for remedy in REMEDIES:
        match = re.search(remedy.pattern, text)
        if match is None and remedy not in _iter_machine(error):
            continue
        if not remedy.fits(error):
            continue
        advice = _fill_in(remedy, match, operators)
        return text if advice in text else f"{text.rstrip('.')}; {advice}"
    return text


def _fill_in(
    remedy: Remedy, match: re.Match[str] | None, operators: Sequence[str]
) -> str:
    """Return the text of a remedy, filled in with the parts of the error that it names.

    Advice for further operators that need another remedy is added.
    """
    values = match.groupdict() if match else {}
    values["library"] = values.get("module") or values.get("package") or ""
    training = [name for name in operators if OF_TRAINING.search(name)]
    untrained = [name for name in operators if name not in training]
    if "operator" in values:
        values["operator"] = ", ".join([values["operator"], *untrained])
        more = [_by_name("training mode")] if training else []
    else:
        more = (
            [_by_name("not core ATen")]
            if remedy.name == "training mode" and untrained
            else []
        )
    filled = {"operator": ", ".join(untrained), **values}
    return "; ".join(entry.text.format(**filled) for entry in (remedy, *more))


def _by_name(name: str) -> Remedy:
    return next(remedy for remedy in REMEDIES if remedy.name == name)


def _iter_machine(error: BaseException) -> Iterator[Remedy]:
    """Yield the remedies for what the machine lacked, judged by the types of the causes.

    Torch raises a different error if it can't write an archive, and a tool that ran out of space
    says so only in the log.
    """
    causes = list(iter_causes(error))
    for cause in iter_causes(error, handled=True):
        if isinstance(cause, MemoryError):
            yield _by_name("memory")
        if isinstance(cause, subprocess.CalledProcessError) and is_full(
            tempfile.gettempdir()
        ):
            yield _by_name("disk")
        number = cause.errno if isinstance(cause, OSError) else None
        for remedy in MACHINE if number is not None else ():
            # Other errors handled on the way may have been expected.
            if number in remedy.numbers and (cause in causes or remedy.name == "disk"):
                yield remedy
