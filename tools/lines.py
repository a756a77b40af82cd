"""Print the lines of `pipeline/` by room, and what has grown since a revision.

Tables and templates (TOML, JSON, Jinja) are counted by themselves, after the sum of the modules.

python tools/lines.py [REVISION]
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
DATA = "data"
KINDS = (".py", ".toml", ".json", ".j2")
Counts = tuple[Counter[str], Counter[str]]  # modules and lines by room


def count(revision: str | None = None) -> Counts:
    """Count modules and lines by room, in the work tree or in a revision."""
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for name, content in _sources(revision):
        parts = PurePosixPath(name).parts
        room = parts[1] if len(parts) > 2 else "(top)"
        room = room if name.endswith(".py") else DATA
        modules[room] += 1
        lines[room] += content.count(b"\n")
    return modules, lines


def _sources(revision: str | None) -> list[tuple[str, bytes]]:
    if revision is None:
        paths = (path for path in (ROOT / "pipeline").rglob("*") if path.suffix in KINDS)
        return [(path.relative_to(ROOT).as_posix(), path.read_bytes()) for path in sorted(paths)]
    names = _git("ls-tree", "-r", "--name-only", revision, "pipeline").decode().split()
    return [(n, _git("show", f"{revision}:{n}")) for n in names if n.endswith(KINDS)]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def main(revision: str | None) -> None:
    modules, lines = count()
    before = count(revision)[1] if revision else lines.copy()
    data = [(DATA, modules.pop(DATA), lines.pop(DATA), before.pop(DATA, 0))]
    rows = [(room, modules[room], lines[room], before[room]) for room in sorted({*lines, *before})]
    rows += [("all", modules.total(), lines.total(), before.total()), *data]
    for room, number, now, then in rows:
        grown = f"{now - then:+7,}" if revision else ""
        print(f"{room:<10} {number:>4} files {now:>7,} lines {grown}")


if __name__ == "__main__":
    main(next(iter(sys.argv[1:]), None) or None)
