"""The errors of the package: each with a code, a real message, a cause and a remedy.

errors.toml holds the entries. Templates, read from the syntax trees of `pipeline/`, lead from an
error message to its code: a message belongs to an entry by the module that raises it and, if that
module has several entries, by part of its text. The messages quoted in the docs are ones that tests
provoke.
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
# Errors and functions that take a message for users; some only in these folders.
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
# Raised to be caught, then reworded elsewhere.
_INSIDE = ("compile/inspect/arrays.py", "features/refit/", "store/sizes.py")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_QUOTED_VALUE = re.compile(r"[`']?…[`']?")
_FEW = 8  # letters: a shorter message is put together elsewhere


class Message(NamedTuple):
    """A message, with … in place of values, and the module that raises it."""

    module: str
    text: str


class Entry(NamedTuple):
    """A kind of error.

    Attributes:
        code: such as `PTE101`; the hundred names its group.
        title: what is wrong, in one line.
        cause: prose, with links as in docs/reference/.
        remedy: prose, with links as in docs/reference/.
        message: a message that `test` provokes, with … for what varies between runs.
        test: the pytest node that provokes it; without parameters, any one of its cases.
        modules: the modules that raise messages of this entry, as paths or folders in pipeline/.
        texts: each message contains one of these; empty if the entry takes all of its modules'
            messages.
        templates: whole messages, with … for values, which identify the entry best.
        config: for a mistake in a config, the text of a faulty partition_configs/vision.yaml, in
            place of `test`.
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
    """Return whether a message of the code matches a template, apart from its hint."""
    fault = _QUOTED_VALUE.sub("…", template.partition("; ")[0])
    return count_letters(fault) >= LEAST_LETTERS and holds(text, fault)


class Group(NamedTuple):
    """A hundred of codes. The group's code, such as `PTE100`, is for errors without an entry.

    Attributes:
        code: the code of the group.
        title: the heading of the group.
        cause: the cause of an error without an entry.
        remedy: what to do about such an error.
        kinds: the kinds of action whose errors belong to the group.
        places: how errors of the group begin if they belong to no action.
    """

    code: str
    title: str
    cause: str
    remedy: str
    kinds: Sequence[str] = ()
    places: Sequence[str] = ()


@cache
def entries() -> tuple[Entry, ...]:
    """Return the entries in the order in which a message is looked up."""
    entries = []
    for fields in _read()["error"]:
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        entries.append(Entry(**{**fields, **lists}))
    return tuple(entries)


@cache
def groups() -> tuple[Group, ...]:
    """Return the groups, in the order of errors.toml."""
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
    """Return the strings that a function assigns to names."""
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
    """Return a string of the code with … for each value in it."""
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
    """Return the first entry that matches a message."""
    return next((entry for entry in entries() if entry.fits(message)), None)


def group_of(code: str) -> Group:
    """Return the group of a code."""
    return next(group for group in groups() if group.code[:4] == code[:4])


def make_error_data() -> str:
    """Return the text of error_codes.json, which tells the command line about errors."""
    data = {
        "groups": [_in_terminal(group._asdict()) for group in groups()],
        "errors": [_in_terminal(_describe(entry)) for entry in all_entries()],
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _describe(entry: Entry) -> dict[str, Any]:
    fields = {name: getattr(entry, name) for name in ("code", "title", "cause", "remedy")}
    return {**fields, "message": entry.message, "templates": find_templates(entry)}


def _in_terminal(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with links in the form for a terminal: `Models (docs/guides/models.md)`."""
    for name in ("cause", "remedy"):
        fields[name] = _LINK.sub(_name_page, fields[name])
    return fields


def _name_page(match: re.Match[str]) -> str:
    """Return the text of a link followed by the path of its page in the repository."""
    text, target = match.groups()
    page = target.partition("#")[0]
    if not page:
        return f"{text} (docs/reference/errors.md)"
    if page.startswith("http"):
        return f"{text} ({page})"
    path = page.removeprefix("../") if page.startswith("../") else f"reference/{page}"
    return f"{text} (docs/{path})"


def find_templates(entry: Entry) -> list[list[str]]:
    """Return the messages of an entry in parts, each with … for its values.

    The parts are the mistake and its hint, where these vary from case to case. A place, such as
    `methods.….edge`, is no part: any mistake may be there.
    """
    templates = [[template] for template in entry.templates]
    texts = [message.text for message in messages() if entry_of(message) is entry]
    for text in dict.fromkeys(texts):
        parts = [part.strip() for part in re.split(r"; | / ", text)]
        parts = [part for part in parts if " " in part and count_letters(part) >= LEAST_LETTERS]
        if parts:
            templates.append(parts)
    return templates


@cache
def all_entries() -> tuple[Entry, ...]:
    """Return all entries sorted by code: those of this package, and of torch and ExecuTorch."""
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
    """Yield all entries by group, each with one of its messages."""
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
    """Return the text of a remedy with its values replaced by …."""
    return text.format_map(defaultdict(lambda: "…"))


def _shown_pattern(pattern: str) -> str:
    """Return the first alternative of a pattern, in a readable form."""
    text = re.sub(r"\(\?P<\w+>[^()]*\)", "…", pattern)
    text = re.sub(r"\(\?:\^[^()]*\)|\(\?:\.\*[^()]*\)\?|\\b", "", text)
    text = re.sub(r"\.\*|(?:\\d|\[\\d:\])\+", "…", text)
    while (shorter := re.sub(r"\(\?:([^()|]*)[^()]*\)", r"\1", text)) != text:
        text = shorter
    text = text.partition("|")[0]
    shown = re.sub(r"(?<!\\)[?*]|(?<=\w)\\w", "", text)
    return re.sub(r"\\(.)", r"\1", shown).replace("`", "'")


def index() -> Iterator[str]:
    """Yield the table of all entries for the page that links to them."""
    yield "| code | what is wrong | what to do |"
    yield "|---|---|---|"
    for entry in sorted(entries()):
        remedy = re.sub(r"\]\((?!https?:|\.\.)", "](reference/", entry.remedy)
        link = f"[{entry.code}](reference/errors.md#{entry.code.lower()})"
        yield row(link, entry.title, remedy.replace("](../", "]("))
