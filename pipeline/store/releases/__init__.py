"""The supported releases of ExecuTorch, and which of them is installed.

All that differs between releases is in this folder: a TOML file for each, and
`constructors-<release>.json`, which lists how the constructors of its backends differ from the
first release's (`python -m tools.describe_constructors`). Versions are read from the metadata of
distributions; nothing is imported.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.store.distributions import CHANGED, identity

FOLDER = Path(__file__).parent
_PUBLIC = r"\d+(\.\d+)*"
_NONE: Mapping[str, Any] = MappingProxyType({})


class Release(NamedTuple):
    """A release of ExecuTorch, with the distributions that it was tested with.

    Attributes:
        executorch: the tested version.
        torch: the tested versions of torch, starting with the one to install.
        least: the lowest versions of distributions that ExecuTorch requires without pinning.
        bindings: the extension module of `executorch.extension.pybindings`.
        lacks: the backends of the catalogue that the release lacks, with the requirement to pass to
            pip to get them.
        joint: vendors' backends that see all methods at once, in addition to the first release's.
        not_offered: by target, the parameters of backend constructors that the first release lacks
            and that are not offered as options, each with the reason.
        rewritten: the new digests of functions whose source differs from the first release's, after
            a review that our replacements for them still hold.
        rewritten_by_torch: the same by minor release of torch, such as "2.14".
    """

    executorch: str
    torch: tuple[str, ...]
    least: Mapping[str, str]
    bindings: str
    lacks: Mapping[str, str] = _NONE
    joint: tuple[str, ...] = ()
    not_offered: Mapping[str, Mapping[str, str]] = _NONE
    rewritten: Mapping[str, str] = _NONE
    rewritten_by_torch: Mapping[str, Mapping[str, str]] = _NONE

    def __hash__(self) -> int:  # mappings have none
        return hash(self.executorch)

    def __str__(self) -> str:
        return f"executorch {self.executorch} with torch {' or '.join(self.torch)}"

    @property
    def minor(self) -> tuple[int, ...]:
        """The numbers of the minor release, such as (1, 5)."""
        return _numbers(self.executorch)[:2]

    @property
    def constructors(self) -> Path:
        """The file of differences between this release's constructors and the first release's."""
        return FOLDER / f"constructors-{'.'.join(map(str, self.minor))}.json"

    def digest_of(self, target: str, digest: str) -> str:
        """Return the digest that a function has with the installed torch.

        Args:
            digest: its digest in the first release.
        """
        of_torch = self.rewritten_by_torch.get(_minor_of_torch(), {})
        return of_torch.get(target) or self.rewritten.get(target, digest)

    def requirements(self) -> dict[str, str]:
        """Return the requirement of each distribution, in the form that pip takes."""
        exact = {"torch": self.torch[0], "executorch": self.executorch}
        requirements = {name: f"{name}=={version}" for name, version in exact.items()}
        for name, version in self.least.items():
            requirements[name] = f"'{name}>={version}'"
        return requirements

    def unmet(self, installed: Mapping[str, str]) -> Iterator[str]:
        """Yield the distributions whose installed version was not tested."""
        tested = {"torch": self.torch, "executorch": (self.executorch,)}
        for name, versions in tested.items():
            if _public(installed[name]) not in versions:
                yield name
        for name, version in self.least.items():
            if not _is_at_least(installed[name], version):
                yield name


def _read(path: Path) -> Release:
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    for name in ("torch", "joint"):
        values[name] = tuple(values.get(name, ()))
    return Release(**values)


def _public(version: str) -> str:
    """Return a version without its local build: `2.13.0` for `2.13.0+cpu`.

    Versions of nightlies and release candidates keep their other suffixes.
    """
    return version.partition("+")[0]


def _is_at_least(installed: str, version: str) -> bool:
    public = _public(installed)
    return bool(re.fullmatch(_PUBLIC, public)) and _numbers(public) >= _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


RELEASES = tuple(
    sorted(map(_read, FOLDER.glob("*.toml")), key=lambda release: release.minor)
)


@cache
def installed_release() -> Release:
    """Return the installed release or, if its version is unknown, the last release before it."""
    version = installed_versions()["executorch"]
    major, minor, *_ = [*map(int, re.findall(r"\d+", version)), 0, 0]
    earlier = [release for release in RELEASES if release.minor <= (major, minor)]
    return earlier[-1] if earlier else RELEASES[0]


@cache
def _minor_of_torch() -> str:
    return ".".join(installed_versions()["torch"].split(".")[:2])


def installed_versions() -> dict[str, str]:
    """Return the installed versions of the distributions that releases name, or "not installed"."""
    # Read as for keys, which skip the metadata of an unchanged distribution.
    names = {name for release in RELEASES for name in release.requirements()}
    return {name: identity(name).partition(CHANGED)[0] for name in names}


def describe_unknown(installed: Mapping[str, str]) -> str:
    """Return a message about untested installed versions, with the tested ones and a remedy, or "".

    The installed versions are compared with the release that differs the least.
    """
    release = min(RELEASES, key=lambda release: len([*release.unmet(installed)]))
    unmet = [*release.unmet(installed)]
    if not unmet:
        return ""
    versions = ", ".join(f"{name} {installed[name]}" for name in unmet)
    releases = ", ".join(map(str, RELEASES))
    remedy = " ".join(release.requirements()[name] for name in unmet)
    return f"untested toolchain: {versions}; tested: {releases}: `pip install {remedy}`"
