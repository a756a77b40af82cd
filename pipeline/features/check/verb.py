"""`doit check`: checks configs without torch and without building anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.cli.verbs import find_path, known_packages
from pipeline.moments import call_all, show_error
from pipeline.plan.plan import Plan
from pipeline.plan.remarks import find_remarks
from pipeline.store.errors import (
    PipelineError,
    Problem,
    find_widespread,
    format_new_problems,
    plural,
)


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Yield a line for each mistake and each warning, then a summary if there is no mistake.

    Args:
        words: packages or config files, by default all.

    Raises:
        PipelineError: there are mistakes, all of them already yielded, or a word names nothing.
    """
    names: list[str] = []
    for word in words:
        names += _packages_of(plan, word)
    packages = known_packages(plan, names)
    shown: dict[Problem, str] = {}
    wrong = 0
    package_to_problems = {package: plan.problems(package) for package in packages}
    widespread = find_widespread(package_to_problems)
    for package, problems in package_to_problems.items():
        wrong += bool(problems)
        lines = format_new_problems(problems, package, shown, widespread)
        yield from map(show_error, lines)
    remarks: list[Problem] = []
    if not words:  # also check files that no package names
        faults: list[Problem] = []
        for problems_of_feature in call_all("check_files", plan):
            faults += problems_of_feature
        faults = [fault for fault in faults if not {fault, fault.cause} & shown.keys()]
        yield from map(show_error, map(str, faults))
        wrong += bool(faults)
        mistakes = {*faults, *shown}
        remarks = [
            remark
            for remark in find_remarks(plan)
            if not {remark, remark.cause} & mistakes
        ]
    for remark in remarks:
        yield f"warning: {show_error(str(remark), 'warning')}"
    if wrong:
        raise PipelineError(
            f"{wrong} of {plural(len(packages), 'package')} with mistakes"
        )
    warned = ""
    if remarks:
        warned = f", {plural(len(remarks), 'warning')}"
    yield f"{plural(len(packages), 'package')}: no mistakes{warned}"


def _packages_of(plan: Plan, word: str) -> list[str]:
    """Return the packages that a config file makes, including those that extend it.

    If the word isn't a config file, returns the word itself. Raises PipelineError if it names a
    YAML file that doesn't exist.
    """
    folder = plan.workspace.configs
    path = find_path(plan, word)
    is_yaml = path.suffix in (".yaml", ".yml")
    if is_yaml and not path.exists() and word not in plan.packages:
        raise PipelineError(f"{word}: there is no such config")
    if path.parent.resolve() != folder.resolve():
        return [word]
    return list(plan.configs.made_by(path.name)) or [word]
