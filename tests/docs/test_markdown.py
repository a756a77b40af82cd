"""Every Markdown file closes its fences, and its links within the repository resolve."""

import re

import pytest

from tests.support.bench import REPOSITORY

FILES = sorted(
    path.relative_to(REPOSITORY)
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md")
    for path in REPOSITORY.glob(pattern)
)
_FENCE = re.compile(r"^ {0,12}(`{3,}|~{3,})(.*)$")


def outside_of_fences(text):
    """Return the lines outside fences. Raises ValueError if a fence stays open."""
    opened, lines = None, []
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if opened is None and mark:
            opened = (mark[1], number)
        elif opened is None:
            lines.append(line)
        elif mark and not mark[2].strip() and mark[1].startswith(opened[0]):
            opened = None
        elif mark and mark[2].strip():
            raise ValueError(f"line {number}: a fence opens in that of line {opened[1]}")
    if opened is not None:
        raise ValueError(f"line {opened[1]}: the fence stays open")
    return lines


def anchors(text):
    """Return the anchors of a file's headings, as GitHub and MkDocs name them."""
    heads = [line.lstrip("#").strip() for line in outside_of_fences(text) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("text", ["a\n```sh\nb", "```\na\n```sh\nb\n```\n", "~~~\n```\n"])
def test_open_fence_is_seen(text):
    with pytest.raises(ValueError, match=r"line \d:"):
        outside_of_fences(text)


@pytest.mark.parametrize("name", FILES, ids=str)
def test_fences_are_closed_and_links_lead_somewhere(name):
    path = REPOSITORY / name
    lines = outside_of_fences(path.read_text(encoding="utf-8"))
    plain = re.sub(r"(`+)[^`].*?\1", "", "\n".join(lines), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", plain):
        there = path.parent / target if target else path
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{target}#{anchor}"
