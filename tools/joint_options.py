"""Writes the table that maps ExecuTorch's parameters to config keys.

`python -m tools.joint_options` makes docs/reference/executorch-parameters.md from
joint_options.toml and from the catalogue's partitioners. It doesn't read ExecuTorch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from pipeline.backends import BACKENDS
from pipeline.features.constructor_options.constructors import Constructor, constructors, parameters
from pipeline.store.releases import RELEASES, Release, installed_release

FILE = Path(__file__).with_suffix(".toml")
DOCS = Path(__file__).parents[1] / "docs" / "reference" / "executorch-parameters.md"
BEGIN, END = "<!-- made by tools.joint_options -->\n", "<!-- end -->\n"
NOT_OFFERED = "not offered: "


def joint_parameters() -> dict[str, dict[str, str]]:
    """Return the table's text for each parameter of the installed release, by `module:callable`."""
    parameters: dict[str, dict[str, str]] = {}
    for target, rows in _read_rows().items():
        parameters[target] = {}
        for parameter, row in rows.items():
            since, said = _split(row)
            if _numbers(since) <= installed_release().minor:
                parameters[target][parameter] = said
    return parameters


def _read_rows() -> dict[str, dict[str, str]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _split(row: str) -> tuple[str, str]:
    """Return the first release with a parameter ("" for the first release of all), and the text."""
    since, colon, said = row.partition(": ")
    return (since, said) if colon and since[0].isdigit() else ("", row)


def _numbers(since: str) -> tuple[int, ...]:
    return tuple(map(int, since.split("."))) if since else (0,)


def partitioner_parameters() -> Iterator[tuple[str, str, str]]:
    """Yield the parameters of the partitioner constructors in the catalogue, in any release.

    Each comes as the callable, the parameter, and the config key or the reason why there is none.
    """
    for name, backend in BACKENDS.items():
        for constructor in constructors(f"{name}.lowering") if not backend.plugin else ():
            target = constructor.target.partition(":")[2] or constructor.target
            rows: dict[str, str] = {}
            for release in RELEASES:
                for parameter in parameters(constructor, release):
                    rows.setdefault(parameter, _said(name, constructor, parameter, release))
            for parameter, said in rows.items():
                yield f"{name}: {target}", parameter, said


def _said(backend: str, constructor: Constructor, parameter: str, release: Release) -> str:
    reason = release.not_offered.get(constructor.target, {}).get(parameter)
    if reason is not None:
        since = ".".join(map(str, release.minor))
        return f"{since}: {NOT_OFFERED}{reason}"
    if parameter in constructor.left_out:
        return f"{NOT_OFFERED}{constructor.left_out[parameter]}"
    options = {theirs: ours for ours, theirs in constructor.renamed.items()}
    return f"partitioners: {backend}: {options.get(parameter, parameter)}"


def table() -> str:
    """Return the table in Markdown."""
    rows = ["| function or class | parameter | config key |", "|---|---|---|"]
    for target, said in _read_rows().items():
        name = target.partition(":")[2]
        rows += [_row(name, parameter, key) for parameter, key in said.items()]
    rows += [_row(*each) for each in partitioner_parameters()]
    return "\n".join(rows) + "\n"


def _row(of: str, parameter: str, said: str) -> str:
    since, said = _split(said)
    here = said if said.startswith(NOT_OFFERED) else f"`{said}`"
    new = f" (new in {since})" if since else ""
    return f"| `{of}` | `{parameter}`{new} | {here} |"


def write(text: str) -> str:
    """Return the page with its table replaced by the current one."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    DOCS.write_text(write(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
