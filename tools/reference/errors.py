"""The errors of the package: each message with its cause and its remedy.

Messages are read from the syntax trees of `pipeline/`; causes and remedies stand in errors.toml, by
the module that says the message and, where that says several, by a part of its text.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.features.remedies.table import REMEDIES
from tools.reference.markdown import row

FILE = Path(__file__).with_suffix(".toml")
CODE = Path(__file__).parents[2] / "pipeline"
# What is called to say a message to a user; some only in these rooms.
_ANYWHERE = {
    *("ArgumentError", "CannotRefitError", "CorruptError", "DelegateError", "DeviceError"),
    *("ExecutorLostError", "MissingBlobError", "PipelineError", "Problem", "RefusalError"),
    *("RegisteredTwiceError", "SourceError", "TypeError", "UnknownBackendError", "ValueError"),
    *("_WrongError", "rule"),
}
_IN_ROOMS = {
    "add": ("config/mistakes", "config/reader"),
    "problem": ("config/", "features/", "plan/"),
}
# Raised to be caught, and put into words elsewhere.
_INSIDE = ("compile/inspect/arrays.py", "features/refit/recipes.py", "store/sizes.py")
_FEW = 8  # letters: a message of fewer is made elsewhere


class Message(NamedTuple):
    """A message, with … where a value stands, and the module that says it."""

    module: str
    text: str


class Entry(NamedTuple):
    """A kind of error: `title`, `cause` and `remedy` in words; the `modules` that say it, as paths
    or folders in pipeline/; parts of the texts, one of which it holds, or none for all."""

    title: str
    cause: str
    remedy: str
    modules: list[str]
    texts: Sequence[str] = ()

    def fits(self, message: Message) -> bool:
        return message.module.startswith(tuple(self.modules)) and (
            not self.texts or any(text in message.text for text in self.texts)
        )


@cache
def sections() -> dict[str, list[Entry]]:
    """Return the entries by section of the page."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {title: [Entry(**each) for each in entries] for title, entries in found.items()}


@cache
def messages() -> tuple[Message, ...]:
    """Return all messages, in the order of modules and lines."""
    return tuple(
        message
        for path in sorted(CODE.rglob("*.py"))
        if (module := path.relative_to(CODE).as_posix()) not in _INSIDE
        for message in _said(module, path.read_text(encoding="utf-8"))
    )


def _said(module: str, text: str) -> Iterator[Message]:
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        rooms = _IN_ROOMS.get(name, ("",) if name in _ANYWHERE else ())
        if not rooms or not module.startswith(rooms):
            continue
        within = [f for f in functions if f.lineno <= call.lineno <= (f.end_lineno or 0)]
        names = _assigned(within[-1]) if within else {}
        said = "; ".join(filter(_counts, (_template(each, names) for each in call.args)))
        if _counts(said):
            yield Message(module, said)


def _assigned(function: ast.FunctionDef) -> dict[str, str]:
    """Return the texts that the names of a function stand for."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(function):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        text = _template(node.value, {}) if isinstance(node, ast.Assign) else ""
        if isinstance(target, ast.Name) and _counts(text):
            found.setdefault(target.id, []).append(text)
    return {name: " / ".join(texts) for name, texts in found.items()}


def _counts(text: str) -> bool:
    return len(re.findall(r"[A-Za-z]", text)) >= _FEW


def _template(node: ast.AST, names: Mapping[str, str]) -> str:
    """Return a text of the code with … for each of its values."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        values = (
            "…" if isinstance(v, ast.FormattedValue) else _template(v, {}) for v in node.values
        )
        return "".join(values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, names) + _template(node.right, names)
    if isinstance(node, ast.IfExp):
        parts = (_template(each, names) for each in (node.body, node.orelse))
        return " / ".join(filter(None, parts))
    if isinstance(node, ast.Starred | ast.GeneratorExp):
        return _template(node.value if isinstance(node, ast.Starred) else node.elt, names)
    return ""


def entry_of(message: Message) -> Entry | None:
    """Return the first entry that a message fits."""
    every = (entry for entries in sections().values() for entry in entries)
    return next((entry for entry in every if entry.fits(message)), None)


def errors() -> Iterator[str]:
    """Yield all entries, with their messages."""
    for title, entries in sections().items():
        yield from [f"## {title}", ""]
        for entry in entries:
            said = dict.fromkeys(each.text for each in messages() if entry_of(each) is entry)
            yield from [f"### {entry.title}", "", f"**Cause.** {entry.cause}", ""]
            yield from [f"**Remedy.** {entry.remedy}", ""]
            yield from [f"- `{text.replace('`', chr(39))}`" for text in said]
            yield ""


def known_causes() -> Iterator[str]:
    """Yield the table of known errors of torch and ExecuTorch, with their remedies."""
    yield "| cause | the error contains | remedy |"
    yield "|---|---|---|"
    for remedy in REMEDIES:
        text = re.sub(r"\(\?P<\w+>[^()]*\)", "…", remedy.pattern)
        text = re.sub(r"\(\?:\^[^()]*\)|\\d\+|\\b", "", text)
        text = re.sub(r"\(\?:([^()|]*)[^()]*\)|\.\*", r"\1", text).partition("|")[0]
        shown = re.sub(r"(?<!\\)[?*]|(?<=\w)\\w", "", text)
        shown = re.sub(r"\\(.)", r"\1", shown).replace("`", "'")
        advice = remedy.text.format_map(defaultdict(lambda: "…"))
        yield row(remedy.name, f"`{shown}`", advice)


def index() -> Iterator[str]:
    """Yield the table of all entries, for the page that leads to them."""
    yield "| what is wrong | what to do |"
    yield "|---|---|"
    for entries in sections().values():
        for entry in entries:
            anchor = re.sub(r"[^\w\- ]", "", entry.title.lower()).replace(" ", "-")
            remedy = re.sub(r"\]\((?!https?:|\.\.)", "](reference/", entry.remedy)
            yield row(
                f"[{entry.title}](reference/errors.md#{anchor})", remedy.replace("](../", "](")
            )
