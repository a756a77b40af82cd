"""Secrets: values of variables in the options of passes, which must not be written to any file.

This module knows neither configs nor the syntax of variables (`variables.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pipeline.store.digest import Digest


@dataclass(frozen=True)
class Secret:
    """The value of a variable that is never recorded; options of passes may hold it."""

    name: str
    value: str = field(repr=False)

    def __str__(self) -> str:
        return f"${{{self.name}}}"

    @cached_property
    def digest(self) -> Digest:
        """The digest that represents the value in keys.

        It takes some 30 ms, so that a short value can't be found by trying many.
        """
        salt = f"pte-pipeline secret {self.name}".encode()
        value = self.value.encode(errors="surrogateescape")
        derived = hashlib.scrypt(
            value,
            salt=salt,
            n=2**14,
            r=8,
            p=1,
            dklen=32,
        )
        return Digest(derived.hex())


def replace_secrets(value: Any, change: Callable[[Secret], Any]) -> Any:
    """Copy plain data with each secret replaced by the result of `change`."""
    if isinstance(value, dict):
        return {key: replace_secrets(member, change) for key, member in value.items()}
    if isinstance(value, list):
        return [replace_secrets(member, change) for member in value]
    if isinstance(value, Secret):
        return change(value)
    return value
