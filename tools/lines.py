"""Prints the size of `pipeline/` by folder, and fails if it exceeds a ceiling or misses a floor.

It prints lines and modules, then what a reader has to keep in mind (`tools/measures.py`): syntax
nodes, nodes per code line, record types, the share of vague names, the share of lines with a
comment. Tables and templates (TOML, JSON, Jinja) are counted separately, after the sum of the
modules. The ceilings, and the floor for comments, are in `[tool.house]` of pyproject.toml.

python tools/lines.py [REVISION]           also print the growth since a revision
python tools/lines.py --closure MODULE     print what a module imports, directly or indirectly

Features are listed separately: for the code outside `pipeline/features/` it prints the nodes, and
how many modules import a feature, which must be none.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]  # when run as a script, this folder comes first

from tools.measures import (  # noqa: E402
    Measure,
    find_closure,
    find_imports,
    find_shared_names,
    measure_modules,
)

_DATA_KINDS = (".toml", ".json", ".j2")
_HEADINGS = ("room", "files", "lines", "grown", "nodes", "a line", "records", "vague", "comments")


def read_files(revision: str | None = None) -> dict[str, bytes]:
    """Return the files of the package keyed by path, in the work tree or in a revision."""
    kinds = (".py", *_DATA_KINDS)
    if revision is None:
        paths = sorted((ROOT / "pipeline").rglob("*"))
        return {p.relative_to(ROOT).as_posix(): p.read_bytes() for p in paths if p.suffix in kinds}
    names = _git("ls-tree", "-r", "--name-only", revision, "pipeline").decode().split()
    return {name: _git("show", f"{revision}:{name}") for name in names if name.endswith(kinds)}


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def read_modules(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the text of each module, keyed by dotted name."""
    texts = {}
    for path, content in files.items():
        if path.endswith(".py"):
            parts = PurePosixPath(path).with_suffix("").parts
            texts[".".join(parts).removesuffix(".__init__")] = content.decode()
    return texts


def room_of(module: str) -> str:
    """Return the top-level folder of a module, or `(top)` if it has none."""
    parts = module.split(".")
    is_folder = (ROOT / "pipeline" / parts[1]).is_dir() if len(parts) == 2 else len(parts) > 2
    return parts[1] if is_folder else "(top)"


def count_lines(files: Mapping[str, bytes]) -> Counter[str]:
    """Return the number of lines of the modules in each folder."""
    lines: Counter[str] = Counter()
    for module, text in read_modules(files).items():
        lines[room_of(module)] += text.count("\n")
    return lines


def measure_core(
    measures: Mapping[str, Measure], imports: Mapping[str, set[str]]
) -> dict[str, float]:
    """Return the number of syntax nodes in the core, and how many of its modules import a feature.

    The core is what a build needs: each feature is a folder that a test deletes.
    """
    outside = [name for name in measures if not _is_of_feature(name)]
    importers = [name for name in outside if any(map(_is_of_feature, imports[name]))]
    return {
        "core-nodes": sum(measures[name].nodes for name in outside),
        "core-importing-features": len(importers),
    }


def _is_of_feature(module: str) -> bool:
    return module.startswith("pipeline.features.")


def find_excesses(
    total: Measure,
    ceilings: Mapping[str, float],
    closures: Mapping[str, int],
    core: Mapping[str, float] = MappingProxyType({}),
) -> list[str]:
    """Return a line for each figure above its ceiling in `[tool.house]`.

    Args:
        core: the result of `measure_core`.
        closures: how many modules each module imports, directly and through others.
    """
    figures = {
        "nodes-a-line": total.nodes_a_line,
        "records": len(total.records),
        "vague-names": total.vague_percent,
        **core,
    }
    excesses = []
    for name, figure in figures.items():
        if figure > ceilings[name]:
            excesses.append(f"{name}: {figure:.2f} exceeds {ceilings[name]:g}")
    for module, most in closures.items():
        ceiling = ceilings[f"closure.{module}"]
        if most > ceiling:
            excesses.append(f"{module}: imports {most} modules, which exceeds {ceiling:g}")
    return excesses


def find_shortfalls(total: Measure, floors: Mapping[str, float]) -> list[str]:
    """Return a line for each figure below its floor in `[tool.house]`."""
    figures = {"comments": total.comment_percent}
    shortfalls = []
    for name, figure in figures.items():
        if figure < floors[name]:
            shortfalls.append(f"{name}: {figure:.2f} is less than {floors[name]:g}")
    return shortfalls


def read_limits() -> tuple[dict[str, float], dict[str, int]]:
    """Return the limits in `[tool.house]`: first for figures, then for the size of closures."""
    house = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["house"]
    closures = house.pop("closures")
    return house, closures


def print_table(
    files: Mapping[str, bytes], measures: Mapping[str, Measure], before: Counter[str] | None
) -> Measure:
    """Print a row per folder, and return the sum of all measures.

    Args:
        measures: the measures of the modules among the files, keyed by dotted name.
    """
    rooms: dict[str, Measure] = defaultdict(Measure)
    for module, measure in measures.items():
        rooms[room_of(module)] += measure
    total = sum(rooms.values(), Measure())
    print("{:<10}{:>6}{:>8}{:>8}{:>9}{:>8}{:>9}{:>8}{:>10}".format(*_HEADINGS))
    for room in sorted({*rooms, *(before or ())}):
        then = None if before is None else before[room]
        _print_row(room, rooms[room], then)
    _print_row("all", total, None if before is None else before.total())
    data = [content for path, content in files.items() if path.endswith(_DATA_KINDS)]
    data_lines = b"".join(data).count(b"\n")
    print(f"{'data':<10}{len(data):>6}{data_lines:>8,}")
    return total


def _print_row(room: str, measure: Measure, lines_before: int | None) -> None:
    grown = "" if lines_before is None else f"{measure.lines - lines_before:+,}"
    print(
        f"{room:<10}{measure.modules:>6}{measure.lines:>8,}{grown:>8}{measure.nodes:>9,}"
        f"{measure.nodes_a_line:>8.2f}{len(measure.records):>9}{measure.vague_percent:>7.1f}%"
        f"{measure.comment_percent:>9.1f}%"
    )


def main() -> int:
    """Print the figures; return 1 if one exceeds its ceiling or misses its floor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", nargs="?", default="")
    parser.add_argument("--closure", metavar="MODULE")
    arguments = parser.parse_args()
    files = read_files()
    texts = read_modules(files)
    imports = find_imports(texts)
    if arguments.closure:
        print(*sorted(find_closure(arguments.closure, imports)), sep="\n")
        return 0
    before = count_lines(read_files(arguments.revision)) if arguments.revision else None
    measures = measure_modules(texts)
    total = print_table(files, measures, before)
    house, closure_ceilings = read_limits()
    closures = {module: len(find_closure(module, imports)) for module in closure_ceilings}
    for module, number in closures.items():
        print(f"{module} imports {number} modules, of at most {closure_ceilings[module]}")
    core = measure_core(measures, imports)
    print("{:,} nodes outside features/".format(core["core-nodes"]))
    print("{} modules of them import a feature".format(core["core-importing-features"]))
    shared_names = find_shared_names(texts)
    core["shared-class-names"] = len(shared_names)
    for name, modules in sorted(shared_names.items()):
        print(f"{name} is a class of {', '.join(modules)}")
    limits = house | {f"closure.{name}": most for name, most in closure_ceilings.items()}
    excesses = find_excesses(total, limits, closures, core)
    for excess in excesses:
        print(f"above its ceiling in pyproject.toml: {excess}")
    shortfalls = find_shortfalls(total, house)
    for shortfall in shortfalls:
        print(f"below its floor in pyproject.toml: {shortfall}")
    return int(bool(excesses or shortfalls))


if __name__ == "__main__":
    sys.exit(main())
