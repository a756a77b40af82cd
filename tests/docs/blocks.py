"""The fenced code blocks of README and docs/, and the configs among them, complete or partial."""

from __future__ import annotations

import re
import textwrap
from typing import NamedTuple

import yaml

from tests.support.bench import REPOSITORY

PAGES = [
    "README.md",
    *sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("docs/**/*.md")),
]
_FENCE = re.compile(r"^( *)(`{3,}|~{3,})(\S*)")
_TITLE = re.compile(r"`([\w./-]+)`")


class Block(NamedTuple):
    """A fenced block: its page, the line of its fence, its language (or ""), its text without the
    page's indentation, and the path on the line above it (or "")."""

    page: str
    line: int
    language: str
    text: str
    title: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: str) -> list[Block]:
    return list(split_blocks(page, (REPOSITORY / page).read_text(encoding="utf-8")))


def split_blocks(page: str, text: str):
    """Yield the blocks of a page."""
    opened, lines, above = None, [], ["", ""]
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if opened is None and mark:
            opened, lines = (number, mark[1], mark[2], mark[3]), []
            title = _TITLE.fullmatch(above[0].strip()) if not above[1].strip() else None
        elif opened is None:
            above = [above[1], line]
        elif mark and mark[2].startswith(opened[2]) and not mark[3]:
            start, indentation, _, language = opened
            content = textwrap.dedent("\n".join(lines)) if indentation else "\n".join(lines)
            yield Block(page, start, language, f"{content}\n", title[1] if title else "")
            opened, above = None, ["", ""]
        else:
            lines.append(line)


ALL = [block for page in PAGES for block in read_blocks(page)]


# Configs

# Filled in for parts of configs that omit their methods, for many models.
_METHODS = ("classify", "features", "prefill", "decode", "encode", "embed", "forward", "sample")
BASE = {
    "model": "m",
    "defaults": {"partitioners": ["xnnpack"]},
    "validate": {"gates": {"max_size": "40MB"}},
}


def documents_of(block: Block) -> list[dict]:
    """Return the configs of a block: one, or one per line if each line sets the same key."""
    lines = [line for line in block.text.splitlines() if line.strip()]
    firsts = [line.partition(":")[0] for line in lines]
    if len(lines) > 1 and len({*firsts}) == 1:
        return [yaml.safe_load(line) for line in lines]
    return [yaml.safe_load(block.text)]


def complete(document: dict) -> dict:
    """Complete a part of a config."""
    if not isinstance(document, dict):
        raise TypeError(f"no mapping: {document!r}")
    if "passes" in document:
        document = {"edge": document}
    if document.keys() <= {"quantize", "edge"}:
        document = {"methods": {"classify": document}}
    if "model" in document and "methods" in document:
        return document
    named = {*document.get("methods", {}), *document.get("validate", {}).get("methods", {})}
    methods = {name: {} for name in (*_METHODS, *named)}
    for name, own in document.get("methods", {}).items():
        methods[name] = own
    base = {**BASE, **{k: v for k, v in document.items() if k != "methods"}, "methods": methods}
    if "defaults" in document:
        base["defaults"] = {**BASE["defaults"], **document["defaults"]}
    return base


def write_configs(block: Block, folder) -> int:
    """Write a block's configs and the bases that they may extend; return the number of configs."""
    for base in ("_base", "_language", "_phone"):
        content = {**BASE, "methods": {name: {} for name in _METHODS}}
        (folder / f"{base}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    documents = documents_of(block)
    for number, document in enumerate(documents):
        whole = document if "extends" in document else complete(document)
        text = yaml.safe_dump(whole, sort_keys=False)
        (folder / f"p{number}.yaml").write_text(text, encoding="utf-8")
    return len(documents)
