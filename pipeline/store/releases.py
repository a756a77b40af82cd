"""The releases of torch and ExecuTorch that this release was tested with, and what is installed.

The data is here alone. Versions are read from the metadata of distributions; nothing is imported.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from pipeline.store.distributions import NOT_INSTALLED

_RELEASE = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True)
class Release:
    """A toolchain by its distributions, and what differs in it from other releases.

    Attributes:
        exact: versions of distributions.
        least: the least versions of what ExecuTorch asks for without naming one version.
        bindings: the extension module of `executorch.extension.pybindings`.
    """

    exact: Mapping[str, str]
    least: Mapping[str, str]
    bindings: str

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.exact.items())

    def requirements(self) -> dict[str, str]:
        """Return what pip is given for each distribution."""
        exact = {name: f"{name}=={version}" for name, version in self.exact.items()}
        return exact | {
            name: f"'{name}>={least}'" for name, least in self.least.items()
        }

    def unmet(self, installed: Mapping[str, str]) -> Iterator[str]:
        """Yield the distributions that are installed in another version than this release's."""
        for name, version in self.exact.items():
            if not _is_release(installed[name], version):
                yield name
        for name, version in self.least.items():
            if not _is_at_least(installed[name], version):
                yield name


RELEASES = (
    Release(
        exact={"torch": "2.13.0", "executorch": "1.4.1"},
        least={"torchao": "0.18.0"},
        bindings="_portable_lib",
    ),
    Release(
        exact={"torch": "2.13.0", "executorch": "1.5.1"},
        least={"torchao": "0.18.0"},
        bindings="_C",
    ),
)


@cache
def installed_release() -> Release:
    """Return the release that is installed: of an unknown version, the last one before it."""
    version = installed_versions()["executorch"]
    minor = [*re.findall(r"\d+", version), "0", "0"][:2]
    earlier = [
        release
        for release in RELEASES
        if _numbers(release.exact["executorch"])[:2] <= tuple(map(int, minor))
    ]
    return earlier[-1] if earlier else RELEASES[0]


def installed_versions() -> dict[str, str]:
    """Return the installed versions of the distributions that releases name, or "not installed"."""
    versions = {}
    for name in {name for release in RELEASES for name in release.requirements()}:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = NOT_INSTALLED
    return versions


def describe_unknown(installed: Mapping[str, str]) -> str:
    """Return what is installed beside every release that is known, with what would mend it, or "".

    The release that differs least is compared with.
    """
    release = min(RELEASES, key=lambda release: len([*release.unmet(installed)]))
    unmet = [*release.unmet(installed)]
    if not unmet:
        return ""
    versions = ", ".join(f"{name} {installed[name]}" for name in unmet)
    releases = " or ".join(map(str, RELEASES))
    remedy = " ".join(release.requirements()[name] for name in unmet)
    return (
        f"untested toolchain: {versions}; this release was tested with {releases}: "
        f"`pip install {remedy}`"
    )


def _is_release(installed: str, version: str) -> bool:
    """Return whether a version is a release, in any local build such as `2.13.0+cpu`. Nightlies
    and release candidates are none."""
    return installed.partition("+")[0] == version


def _is_at_least(installed: str, version: str) -> bool:
    public = installed.partition("+")[0]
    return bool(_RELEASE.fullmatch(public)) and _numbers(public) >= _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
