"""Words the mistakes in a config, including those that pydantic reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from pipeline.backends.quantize_options import UNION_TAGS
from pipeline.config.fields import RULES
from pipeline.store.errors import did_you_mean, shown

PORTABLE = "write `partitioners: []` for portable operators only"
REMEDIES = {
    "model": "name one of models/",
    "methods": "name every method of the model",
    "partitioners": PORTABLE,
    "min_delegated_nodes": "write 90% or 0.9",
    "min_delegated_ops": "write 90% or 0.9",
}
# Keyed by pydantic's type of error. Other types get a sentence that is always true.
_MUST_BE = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "int_type": "must be a whole number",
    "less_than_equal": "must be at most {le:.15g}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "string_unicode": "must be a string",
    "too_short": "must name at least one",
    "tuple_type": "must be a list",
}


class Mistakes(list[InitErrorDetails]):
    """The mistakes in a value, in this project's words."""

    def add(
        self, fault: str, hint: str = "", loc: tuple[int | str, ...] = (), **key: Any
    ) -> None:
        """Add a mistake at a place in the value, or about a `key` of the mapping there."""
        kind = PydanticCustomError(
            "mistake", "mistake", {"what": fault, "known": hint, **key}
        )
        self.append(InitErrorDetails(type=kind, loc=loc, input=None))


@contextmanager
def collected(mistakes: Mistakes, *place: str) -> Iterator[set[int | str]]:
    """Collect the mistakes of a validation within the context, located at a place.

    Yields a set, which afterwards holds the keys of inner mappings with mistakes.
    """
    failed: set[int | str] = set()
    try:
        yield failed
    except ValidationError as invalid:
        places = {mistake["loc"][:1] for mistake in mistakes}
        for error in invalid.errors(include_url=False):
            # pydantic adds `[key]` to paths into mappings.
            loc = tuple(s for s in error["loc"] if s not in ("[key]", *UNION_TAGS))
            if error["type"] == "mistake":
                context = dict(error["ctx"])
                fault = context.pop("what")
                hint = context.pop("known")
                mistakes.add(
                    fault,
                    hint,
                    (*place, *loc),
                    **context,
                )
                failed.update(loc[:1])
            elif error["type"] == "too_short" and error["input"]:
                continue  # some of its members are wrong
            elif error["type"] != "missing" or loc not in places:
                mistakes.add(*_describe(error), loc=(*place, *loc))


def _describe(error: ErrorDetails) -> tuple[str, str]:
    """Return the fault that an error of pydantic's describes, and a hint."""
    kind = error["type"]
    value = error["input"]
    context = error.get("ctx", {})
    key = str(error["loc"][-1]) if error["loc"] else ""
    if kind == "missing":
        return "is missing", REMEDIES.get(key, "")
    if kind in ("literal_error", "unknown"):
        # pydantic lists the choices of a literal only in its sentence.
        listed = re.findall(
            r"'([^']*)'|([\w-]+)", context.get("expected", "").replace(" or ", ", ")
        )
        names = context.get("known") or [text or word for text, word in listed]
        hint = did_you_mean(word(value), names, 60)
        return f"is {shown(value)}, must be one of the known values", hint
    if kind == "rule" and not key:  # about several members
        return error["msg"], ""
    hint = REMEDIES.get(key, "")
    if kind == "rule":
        must = error["msg"]
    elif kind == "string_pattern_mismatch":
        must = RULES[context["pattern"]]
    else:
        must = _MUST_BE.get(kind, "which is not allowed here").format(**context)
    if kind == "string_type" and isinstance(value, int | float):
        hint = "quote it"
    elif kind == "tuple_type" and re.fullmatch(r"[\w.:/-]{1,60}", word(value)):
        hint = f"write [{value}]"
    elif key == "partitioners" and isinstance(value, dict):
        hint = "write `[xnnpack: {}]`, with its options in the braces"
    return f"is {shown(value)}, {must}", hint


def word(value: object) -> str:
    if isinstance(value, str):
        return value
    return ""
