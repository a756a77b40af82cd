"""The environments of toolchains: where each is, what is installed in it, and whether it can build.

Nothing from another environment is imported. Its own Python reports its contents in one call.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.features.toolchains.install import install_environment
from pipeline.features.toolchains.routing import read_toolchains
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.settings_reader import TABLE

DISTRIBUTION = "pte-pipeline"
# Each environment has its own release of these.
_OF_TOOLCHAINS = ("executorch", "torch")
_PATH_STARTS = (".", "/", "~")
_SECONDS = 60
_PROBE = """
import json, sys
from importlib.metadata import distributions
names = {}
for found in distributions():
    if found.metadata["Name"]:
        names.setdefault(found.metadata["Name"], found.version)
print(json.dumps({"python": sys.version.split()[0], "distributions": names}))
"""


def find_python(root: Path, name: str) -> Path:
    """Return the Python of a toolchain, after installing and checking its environment.

    Raises:
        PipelineError: there is no such toolchain, or it can't build; a line for each reason.
    """
    toolchains = read_toolchains(root)
    if name not in toolchains:
        raise PipelineError(_describe_unknown(name, toolchains))
    python = locate(root, name, toolchains[name])
    facts = probe(python, name)
    problems = list(find_problems(name, python, facts))
    if problems:
        raise PipelineError(*problems)
    return python


def _describe_unknown(name: str, toolchains: Mapping[str, Any]) -> str:
    where = f"`toolchains` of [{TABLE}] in pyproject.toml"
    if not toolchains:
        return f"no toolchain '{name}': add it to {where}, such as {name} = \".venv-{name}\""
    return f"no toolchain '{name}' in {where}; {did_you_mean(name, toolchains)}"


def locate(root: Path, name: str, texts: tuple[str, ...]) -> Path:
    """Return the Python of an environment. Raises PipelineError if there is none."""
    if not is_folder(texts):
        return install_environment(name, texts, list_requirements())
    folder = root / Path(texts[0]).expanduser()
    python = folder / "bin" / "python"
    if not python.exists():
        remedy = f"`python -m venv {texts[0]}` creates one"
        raise PipelineError(
            f"toolchain {name}: {texts[0]} has no bin/python, so it is not an environment; {remedy}"
        )
    return python


def is_folder(texts: tuple[str, ...]) -> bool:
    """Return whether the value of a toolchain is a folder, rather than a list of requirements."""
    text = texts[0]
    return len(texts) == 1 and (
        text.startswith(_PATH_STARTS) or "/" in text or not re.search(r"[=<>~!@]", text)
    )


def probe(python: Path, name: str) -> dict[str, Any]:
    """Return an environment's Python version, and the versions of its distributions by name.

    Raises PipelineError if its Python does not run.
    """
    try:
        answer = subprocess.run(
            [python, "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
        facts: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        output = (getattr(error, "stderr", "") or str(error)).strip()
        reason = output.splitlines()[-1] if output else type(error).__name__
        raise PipelineError(
            f"toolchain {name}: {python} does not run: {reason}"
        ) from None
    versions = facts["distributions"]
    facts["distributions"] = {canonicalize_name(key): versions[key] for key in versions}
    return facts


def find_problems(name: str, python: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why an environment can't build, each with its remedy."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not facts["python"].startswith(f"{version}."):
        yield (
            f"toolchain {name}: has Python {facts['python']}, but doit runs in {version}; make an "
            f"environment of Python {version}"
        )
        return
    missing = []
    for distribution in _OF_TOOLCHAINS:
        if distribution not in facts["distributions"]:
            missing.append(distribution)
    if missing:
        names = " and ".join(missing)
        yield (
            f"toolchain {name}: no {names} in it; "
            f"`{python} -m pip install {' '.join(missing)}`, with the release that you want"
        )
    unmet = _find_unmet(facts["distributions"])
    if unmet:
        texts = " ".join(f"'{text}'" for text in unmet)
        yield (
            f"toolchain {name}: lacks what pte-pipeline needs; `{python} -m pip install {texts}`"
        )


def list_requirements() -> list[str]:
    """Return pte-pipeline's requirements for each environment, without torch and ExecuTorch."""
    return [str(requirement) for requirement in _read_requirements()]


def _read_requirements() -> list[Requirement]:
    try:
        texts = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # a copy of the code that is not installed
        texts = []
    requirements = []
    for text in texts:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate(
            {"extra": ""}
        )
        if applies and requirement.name not in _OF_TOOLCHAINS:
            requirements.append(requirement)
    return requirements


def _find_unmet(installed: Mapping[str, str]) -> list[str]:
    """Return the requirements that an environment does not meet."""
    unmet = []
    for requirement in _read_requirements():
        version = installed.get(canonicalize_name(requirement.name))
        # Accept nightlies and release candidates: they are installed on purpose.
        if version is None or not requirement.specifier.contains(
            version, prereleases=True
        ):
            unmet.append(str(requirement))
    return unmet
