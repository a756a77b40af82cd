"""The errors of the package: each with its code, a real message, its cause and its remedy.

errors.toml has the entries. The templates by which an error that is shown finds its code are read
from the syntax trees of `pipeline/`: a message belongs to an entry by the module that says it and,
where that says several, by a part of its text. The messages that people read in the docs are those
that tests provoke.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pipeline.features.help
from pipeline.features.help.error_codes import LEAST_LETTERS, count_letters, holds
from pipeline.features.remedies.table import REMEDIES
from tools.reference.markdown import row

FILE = Path(__file__).with_suffix(".toml")
DATA = Path(pipeline.features.help.__file__).with_name("error_codes.json")
CODE = Path(__file__).parents[2] / "pipeline"
# What is called to say a message to a user; some only in these rooms.
_ANYWHERE = {
    *("ArgumentError", "CorruptError", "DelegateError", "DeviceError"),
    *("ExecutorLostError", "MissingBlobError", "PipelineError", "Problem", "RefusalError"),
    *("RegisteredTwiceError", "SourceError", "TypeError", "UnknownBackendError", "ValueError"),
    *("_WrongError", "rule"),
}
_IN_ROOMS = {
    "add": ("config/mistakes", "config/reader"),
    "problem": ("config/", "features/", "plan/"),
}
# Raised to be caught, and put into words elsewhere.
_INSIDE = ("compile/inspect/arrays.py", "features/refit/", "store/sizes.py")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_QUOTED_VALUE = re.compile(r"[`']?…[`']?")
_FEW = 8  # letters: a message of fewer is made elsewhere


class Message(NamedTuple):
    """A message, with … where a value stands, and the module that says it."""

    module: str
    text: str


class Entry(NamedTuple):
    """A kind of error.

    Attributes:
        code: `PTE101`; its hundred is its group.
        title: what is wrong, in a line.
        cause: in words, with links as in docs/reference/.
        remedy: likewise.
        message: one that `test` provokes, with … for what differs from run to run.
        test: the pytest node that provokes it, or, without its parameters, one of them.
        modules: those that say messages of this entry, as paths or folders in pipeline/.
        texts: parts of the messages, one of which each holds; none for all of the modules.
        templates: whole messages, with … for values: those by which it is known best.
        config: for a mistake in a config, the text of partition_configs/vision.yaml that has it,
            which takes the place of `test`.
    """

    code: str
    title: str
    cause: str
    remedy: str
    message: str = ""
    test: str = ""
    modules: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    config: str = ""

    def fits(self, message: Message) -> bool:
        if any(_says(message.text, template) for template in self.templates):
            return True
        return message.module.startswith(self.modules) and (
            not self.texts or any(text in message.text for text in self.texts)
        )


def _says(text: str, template: str) -> bool:
    """Tell whether a message of the code says what is wrong as a template does, before its hint."""
    fault = _QUOTED_VALUE.sub("…", template.partition("; ")[0])
    return count_letters(fault) >= LEAST_LETTERS and holds(text, fault)


class Group(NamedTuple):
    """A hundred of codes. Its own code, such as `PTE100`, is that of errors without an entry.

    Attributes:
        code: that code.
        title: the heading of the group.
        cause: what an error without an entry is.
        remedy: what to do about it.
        kinds: the kinds of action whose errors it has.
        places: how the errors of the group begin that are of no action.
    """

    code: str
    title: str
    cause: str
    remedy: str
    kinds: Sequence[str] = ()
    places: Sequence[str] = ()


@cache
def entries() -> tuple[Entry, ...]:
    """Return the entries in the order in which a message is looked up in them."""
    entries = []
    for fields in _read()["error"]:
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        entries.append(Entry(**{**fields, **lists}))
    return tuple(entries)


@cache
def groups() -> tuple[Group, ...]:
    """Return the groups, by code."""
    return tuple(Group(**fields) for fields in _read()["group"])


@cache
def _read() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def messages() -> tuple[Message, ...]:
    """Return all messages, in the order of modules and lines."""
    return tuple(
        message
        for path in sorted(CODE.rglob("*.py"))
        if not (module := path.relative_to(CODE).as_posix()).startswith(_INSIDE)
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


@cache
def entry_of(message: Message) -> Entry | None:
    """Return the first entry that a message fits."""
    return next((entry for entry in entries() if entry.fits(message)), None)


def group_of(code: str) -> Group:
    """Return the group of a code."""
    return next(group for group in groups() if group.code[:4] == code[:4])


def make_error_data() -> str:
    """Return the text of error_codes.json: what the command line knows of errors."""
    data = {
        "groups": [_in_terminal(group._asdict()) for group in groups()],
        "errors": [_in_terminal(_describe(entry)) for entry in all_entries()],
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _describe(entry: Entry) -> dict[str, Any]:
    fields = {name: getattr(entry, name) for name in ("code", "title", "cause", "remedy")}
    return {**fields, "message": entry.message, "templates": find_templates(entry)}


def _in_terminal(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with links as a terminal has them: `Models (docs/guides/models.md)`."""
    for name in ("cause", "remedy"):
        fields[name] = _LINK.sub(_name_page, fields[name])
    return fields


def _name_page(match: re.Match[str]) -> str:
    """Return the text of a link with its page in the repository."""
    text, target = match.groups()
    page = target.partition("#")[0]
    if not page:
        return f"{text} (docs/reference/errors.md)"
    if page.startswith("http"):
        return f"{text} ({page})"
    path = page.removeprefix("../") if page.startswith("../") else f"reference/{page}"
    return f"{text} (docs/{path})"


def find_templates(entry: Entry) -> list[list[str]]:
    """Return the messages of an entry in parts, each with … for its values: what is wrong, and what
    would be right, where these differ from case to case."""
    templates = [[template] for template in entry.templates]
    texts = [message.text for message in messages() if entry_of(message) is entry]
    for text in dict.fromkeys(texts):
        parts = [part.strip() for part in re.split(r"; | / ", text)]
        parts = [part for part in parts if count_letters(part) >= LEAST_LETTERS]
        if parts:
            templates.append(parts)
    return templates


@cache
def all_entries() -> tuple[Entry, ...]:
    """Return the entries of this package's errors, then those of torch's and ExecuTorch's, sorted
    by code."""
    known = []
    codes = _read()["known_cause"][0]
    for remedy in REMEDIES:
        advice = _fill(remedy.text)
        known.append(
            Entry(
                codes[remedy.name],
                f"Known error of torch or ExecuTorch: {remedy.name}",
                f"The error contains `{_shown_pattern(remedy.pattern)}`.",
                f"{advice[:1].upper()}{advice[1:]}.",
                templates=(advice,),
            )
        )
    return tuple(sorted((*entries(), *known), key=lambda entry: entry.code))


def errors() -> Iterator[str]:
    """Yield all entries by group, with a message of each."""
    for group in groups():
        yield from [f"## {group.title}", ""]
        yield f"`{group.code}`: {group.cause} {group.remedy}"
        yield ""
        for entry in sorted(entries()):
            if group_of(entry.code) is group:
                yield from [f"### {entry.code}", "", f"**{entry.title}.** {entry.cause}", ""]
                if entry.message:
                    yield from [f"`` {entry.message} [{entry.code}] ``", ""]
                yield from [f"**Remedy.** {entry.remedy}", ""]


def known_causes() -> Iterator[str]:
    """Yield the table of known errors of torch and ExecuTorch, with their remedies."""
    codes = _read()["known_cause"][0]
    yield "| code | cause | the error contains | remedy |"
    yield "|---|---|---|---|"
    for remedy in sorted(REMEDIES, key=lambda remedy: codes[remedy.name]):
        shown = f"`{_shown_pattern(remedy.pattern)}`"
        yield row(codes[remedy.name], remedy.name, shown, _fill(remedy.text))


def _fill(text: str) -> str:
    """Return the text of a remedy with … for its values."""
    return text.format_map(defaultdict(lambda: "…"))


def _shown_pattern(pattern: str) -> str:
    """Return the first alternative of a pattern as people read it."""
    text = re.sub(r"\(\?P<\w+>[^()]*\)", "…", pattern)
    text = re.sub(r"\(\?:\^[^()]*\)|\\d\+|\\b", "", text)
    text = re.sub(r"\(\?:([^()|]*)[^()]*\)|\.\*", r"\1", text).partition("|")[0]
    shown = re.sub(r"(?<!\\)[?*]|(?<=\w)\\w", "", text)
    return re.sub(r"\\(.)", r"\1", shown).replace("`", "'")


def index() -> Iterator[str]:
    """Yield the table of all entries, for the page that leads to them."""
    yield "| code | what is wrong | what to do |"
    yield "|---|---|---|"
    for entry in sorted(entries()):
        remedy = re.sub(r"\]\((?!https?:|\.\.)", "](reference/", entry.remedy)
        link = f"[{entry.code}](reference/errors.md#{entry.code.lower()})"
        yield row(link, entry.title, remedy.replace("](../", "]("))
