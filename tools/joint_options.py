"""Writes the table of ExecuTorch's parameters and our keys,
docs/reference/executorch-parameters.md.

`python -m tools.joint_options` makes it of joint_options.toml, and of what the catalogue says of
partitioners. Reads no ExecuTorch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from pipeline.backends import BACKENDS
from pipeline.backends.constructors import Constructor, constructors, parameters

FILE = Path(__file__).with_suffix(".toml")
DOCS = Path(__file__).parents[1] / "docs" / "reference" / "executorch-parameters.md"
BEGIN, END = "<!-- made by tools.joint_options -->\n", "<!-- end -->\n"
NOT_OFFERED = "not offered: "


def joint_parameters() -> dict[str, dict[str, str]]:
    """Return what is said for each parameter, by `module:callable` and parameter."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def partitioner_parameters() -> Iterator[tuple[str, str, str]]:
    """Yield each parameter of what the catalogue makes partitioners with, and what is said for it:
    the callable, the parameter, the key or why there is none."""
    for name, backend in BACKENDS.items():
        for each in constructors(f"{name}.lowering") if not backend.plugin else ():
            target = each.target.partition(":")[2] or each.target
            for parameter in parameters(each):
                yield f"{name}: {target}", parameter, _said(name, each, parameter)


def _said(backend: str, constructor: Constructor, parameter: str) -> str:
    if parameter in constructor.left_out:
        return f"{NOT_OFFERED}{constructor.left_out[parameter]}"
    options = {theirs: ours for ours, theirs in constructor.renamed.items()}
    return f"partitioners: {backend}: {options.get(parameter, parameter)}"


def table() -> str:
    """Return the table in Markdown."""
    rows = ["| of | parameter | here |", "|---|---|---|"]
    for target, said in joint_parameters().items():
        name = target.partition(":")[2]
        rows += [_row(name, parameter, key) for parameter, key in said.items()]
    rows += [_row(*each) for each in partitioner_parameters()]
    return "\n".join(rows) + "\n"


def _row(of: str, parameter: str, said: str) -> str:
    here = said if said.startswith(NOT_OFFERED) else f"`{said}`"
    return f"| `{of}` | `{parameter}` | {here} |"


def write(text: str) -> str:
    """Return the page with the table of now in its place."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    DOCS.write_text(write(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
