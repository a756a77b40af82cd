"""`doit packages` and `doit list --json`: the packages that the configs of a workspace define."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from json import dumps
from pathlib import Path
from typing import Any, Literal

from pipeline.cli.columns import columns
from pipeline.cli.grammar import find_named
from pipeline.cli.verbs import known_packages
from pipeline.moments import show_error
from pipeline.plan.plan import Plan
from pipeline.store.errors import plural
from pipeline.store.workspace import open_workspace

PACKAGES = {
    "format": Literal[1],
    "packages": [
        {
            "package": str,
            "configs": ([str], "the package's config, and the configs that it extends"),
            "model": (str, None, "the model's name; null if the config has mistakes"),
            "source": (
                str,
                None,
                "the file or folder of the model; null if it doesn't exist",
            ),
            "target": (str, None, "the config's `target`; null if there is none"),
            "methods": ([str], "the methods, in the order of the config"),
            "units": ([[str]], "the groups of methods that are compiled together"),
            "quantized": ([str], "the methods that are quantized"),
            "mistakes": ([str], "the mistakes in the config, one line each"),
        }
    ],
}


def run(plan: Plan, words: Sequence[str], json: bool = False) -> Iterator[Any]:
    """Yield a line for each package, or with `json` the record that `PACKAGES` describes.

    Raises:
        PipelineError: a name matches no package.
    """
    record = _make_record(plan, known_packages(plan, words))
    if json:
        yield record
        return
    cells = []
    for row in record["packages"]:
        what = ", ".join(row["methods"])
        if row["mistakes"]:
            what = plural(len(row["mistakes"]), "mistake")
        cells.append((row["package"], row["model"] or "", row["target"] or "", what))
    yield from (line.rstrip() for line in columns(cells))


def print_list(names: Sequence[str], root: Path) -> int:
    """Print the record of the named packages, by default of all, and return the exit status.

    Packages of all toolchains are included.
    """
    plan = Plan(open_workspace(root))
    plan.trust_last_exports()
    packages: dict[str, None] = {}
    for name in names or plan.configs.packages:
        packages |= dict.fromkeys(find_named(name, plan.configs.packages, "package"))
    print(dumps(_make_record(plan, packages)), flush=True)
    plan.remember()
    return 0


def _make_record(plan: Plan, packages: Iterable[str]) -> dict[str, Any]:
    return {
        "format": 1,
        "packages": [_describe(plan, package) for package in packages],
    }


def _describe(plan: Plan, package: str) -> dict[str, Any]:
    config = plan.configs.config(package)
    source = plan.models.sources.get(plan.model(package) or "")
    path = source and source.path.relative_to(plan.workspace.root)
    units = [list(unit) for unit in plan.units(package)]
    methods: list[str] = []
    for unit in units:
        methods += unit
    return {
        "package": package,
        "configs": list(dict(plan.configs.files(package))),
        "model": plan.model(package),
        "source": str(path) if path else None,
        "target": config.target if config else None,
        "methods": methods,
        "units": units,
        "quantized": list(plan.quantized(package)),
        "mistakes": [show_error(str(problem)) for problem in plan.problems(package)],
    }
