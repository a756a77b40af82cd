"""`doit call-sites`: writes the functions with which an app calls a package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from doit import loader

from pipeline.cli.verbs import known_packages
from pipeline.features.call_sites import LANGUAGES
from pipeline.features.call_sites.methods import describe_methods, find_obstacles
from pipeline.features.call_sites.names import pascal, snake
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status
from pipeline.report.records import read_manifest
from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError, did_you_mean, plural
from pipeline.store.files import write_atomically

Json = Mapping[str, Any]


def run(
    plan: Plan,
    words: Sequence[str],
    language: str = "",
    out: str = "",
    namespace: str = "",
) -> Iterator[str]:
    """Write the call sites of a package to a file, or yield their lines.

    Raises:
        PipelineError: the package's build is missing or out of date, or the language's library
            can't call it, with a line for each reason.
    """
    if language not in LANGUAGES:
        known = did_you_mean(language, LANGUAGES)
        fault = (
            f"no language '{language}'"
            if language
            else "name a language with --language"
        )
        raise PipelineError(f"{fault}; {known}")
    if len(words) != 1:
        raise PipelineError("name one package: doit call-sites vision --language cpp")
    # doit changes to the workspace's folder, but `--out` is relative to the user's.
    path = Path(loader.initial_workdir or plan.workspace.root) / out
    if out and path.is_dir():  # which writing would replace
        raise PipelineError(f"--out {out}: is a folder; name a file")
    (package,) = known_packages(plan, words)
    plan.check(package)
    lowered = link_status(plan, package)
    manifest = read_manifest(plan.workspace, package)
    if not lowered.current or manifest is None:
        raise PipelineError(
            f"{package}: its build is out of date ({lowered.reason}); run `doit lower "
            f"{package}` first"
        )
    lines = list(render(manifest, language, namespace))
    if not out:
        yield from lines
        return
    try:
        write_atomically(path, ("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise PipelineError(
            f"--out {out}: can't be written: {error.strerror}"
        ) from error
    number = len(manifest["methods"]) + len(manifest["constant_methods"])
    yield f"{out}: {plural(number, 'method')} of {package} in {language}"


def render(manifest: Json, language: str, namespace: str = "") -> Iterator[str]:
    """Yield the lines of the call sites of a manifest's package; equal manifests give equal lines.

    Raises:
        PipelineError: the language's library can't call the package; a line for each reason.
    """
    module = import_module(f"pipeline.features.call_sites.{language}")
    facts = find_facts(manifest, namespace)
    obstacles = list(find_obstacles(facts["methods"], module.DTYPES))
    if facts["data_files"] and "data files" in module.LACKS:
        names = ", ".join(facts["data_files"])
        obstacles.append(f"its library loads no .ptd file ({names})")
    if facts["shares_state"] and "shared state" in module.LACKS:
        obstacles.append(
            "its library gives each method its own state; C++ can share it"
        )
    if obstacles:
        package = manifest["package"]
        raise PipelineError(
            *(f"{package} in {language}: {reason}" for reason in obstacles)
        )
    for block in module.render(facts):
        # `splitlines` returns an empty list for an empty line.
        yield from block.splitlines() or [""]


def find_facts(manifest: Json, namespace: str = "") -> dict[str, Any]:
    """Return the data from which call sites are rendered.

    This is the file's `title`, the `class`, the `namespace`, the `methods`, the `data_files`, and
    whether methods share state (`shares_state`).
    """
    package = manifest["package"]
    planning = manifest["emit"].get("memory_planning") or {}
    files = {name: file["digest"] for name, file in manifest["files"].items()}
    command = "made by `doit call-sites`; don't edit"
    return {
        # The digest shows whether a written file matches the current build.
        "title": f"Calls {package}, {hash_json(files)[:12]}: {command}.",
        "class": pascal(package),
        "namespace": namespace or snake(package),
        "methods": describe_methods(manifest),
        "data_files": sorted(name for name in files if name.endswith(".ptd")),
        "shares_state": bool(planning.get("share_mutable_buffers")),
    }
