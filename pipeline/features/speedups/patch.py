"""A patch: the replacement of a library's function or other global whose source code is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from types import FunctionType
from typing import Any

from pipeline.program.patching import digest_source
from pipeline.store.releases import installed_release


@dataclass(frozen=True)
class Patch:
    """One function, property or other global that is replaced.

    Attributes:
        target: `module:name`, or `module:class.name`.
        source: the digest of the target's source code in the first release; `store.releases` has
            the digests for other releases.
        make: returns the replacement, given the original.
        texts: the functions whose source code is hashed, if that isn't the target alone.
    """

    target: str
    source: str
    make: Callable[[Any], Any]
    texts: tuple[Callable[..., Any], ...] = ()

    @property
    def owner(self) -> Any:
        """The module or class that holds the target."""
        return _split(self.target)[0]

    @property
    def name(self) -> str:
        return _split(self.target)[1]

    @property
    def original(self) -> Any:
        return vars(self.owner)[self.name]

    @property
    def is_known(self) -> bool:
        """Return whether the installed source code is the one that the patch was written for."""
        found = self.texts or (getattr(self.original, "fget", self.original),)
        source = installed_release().digest_of(self.target, self.source)
        return digest_source(*found) == source


def functions_of(owner: type) -> tuple[Callable[..., Any], ...]:
    """Return the functions and properties that a class defines, whose source code is found fast.

    To find that of a class, Python 3.11 and 3.12 parse the whole file.
    """
    values = (getattr(value, "fget", value) for value in vars(owner).values())
    return tuple(value for value in values if isinstance(value, FunctionType))


def _split(target: str) -> tuple[Any, str]:
    owner, _, name = target.replace(":", ".").rpartition(".")
    return resolve_name(owner), name
