"""No name or message can send control sequences to a terminal, a CI server or a reader of reports.

`TERMINAL_EXAMPLES=5000 pytest tests/trust/test_terminal.py` tries more than CI does.
"""

import io
import os
import re
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cli import tasks
from pipeline.cli.commands import VERBS
from pipeline.cli.console import Reporter
from pipeline.cli.terminal import as_it_is, guard
from pipeline.cli.workspace_commands import run_verb
from pipeline.features.remote.use import describe_use
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.report.events import Event
from pipeline.report.packages import Entry
from pipeline.report.render import render, render_all
from pipeline.run.action_status import ActionStatus
from pipeline.store.errors import ConfigErrors, PipelineError, Problem
from pipeline.store.visible import one_line, visible
from pipeline.store.workspace import open_workspace
from tests.features.pages.test_render import FULL
from tests.support.outlook import Outlook

EXAMPLES = int(os.environ.get("TERMINAL_EXAMPLES", "30"))
ATTACKS = [
    "\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\r", "\n", "\x85", "\u2028", "\n::error file=x::y",
    "::set-output name=a::b", "##[error]", "##vso[task.x]", "\u202egnp", "\u2066", "\udcff", "\0",
    "[link=http://x]y", "[/]", "[/red]", "<script>", "](http://x)", "`", "``", "|", "\x7f",
]  # fmt: skip
hostile = st.lists(
    st.sampled_from(ATTACKS) | st.text(min_size=1, max_size=3), min_size=1, max_size=6
).map("".join)
many = settings(max_examples=EXAMPLES, derandomize=True)


def hidden(text: str) -> list[str]:
    """Return a text's invisible characters, by their Unicode class and not by our list."""
    marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
    return [
        c for c in text if (unicodedata.category(c) in ("Cc", "Cs") or c in marks) and c != "\n"
    ]


def obeyed(text: str) -> list[str]:
    return [*hidden(text), *re.findall(r"(?m)^\s*::|##\w*\[", text)]


@many
@given(hostile)
def test_visible_text_hides_nothing_and_stays_as_it_is(text):
    assert not hidden(visible(text).replace("\t", "")) and not hidden(one_line(text))
    assert "\n" not in one_line(text)
    assert visible(text).count("\n") == text.count("\n")
    assert visible(visible(text)) == visible(text)


@many
@given(hostile)
def test_a_stream_lets_nothing_pass_that_is_obeyed(text):
    stream = guard(io.StringIO())
    print(text, file=stream)
    assert not obeyed(stream.getvalue().replace("\t", ""))
    assert guard(stream) is stream
    with as_it_is():
        stream.write("\x1b[1m")
    assert stream.getvalue().endswith("\x1b[1m")


def test_what_nobody_reads_any_more_is_dropped():
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        guard(stream)
        stream.write("read\n")
        stream.flush()
        assert os.read(reading, 100) == b"read\n"
        os.close(reading)
        for _ in range(2):
            stream.write("not read\n" * 10_000)
            stream.flush()


@many
@given(st.lists(hostile, min_size=1, max_size=3))
def test_an_error_has_the_lines_that_we_gave_it(texts):
    for error in (
        PipelineError(*texts),
        ConfigErrors(Problem(f"{n}.yaml", text, text, text) for n, text in enumerate(texts)),
    ):
        assert not hidden(str(error))
        assert len(str(error).split("\n")) == len(texts)


CALLS = [
    ("plan",), ("plan", "NAME"), ("explain", "NAME"), ("explain", "good/NAME"),
    ("backends", "NAME"), ("cache", "NAME"), ("report",), ("report", "NAME"),
    ("baseline",), ("baseline", "NAME"),
    ("diff",), ("diff", "NAME"), ("rebuild", "NAME"),
]  # fmt: skip
FLAGS = {"plan": {"resolved": False}, "diff": {"markdown": False}}


def _word(text):
    """Return the part of a text that can be a command's argument."""
    return text.replace("\0", "_")


def _write_workspace(root, text):
    """Write a workspace with `text` as every name, as far as files allow."""
    for folder in ("partition_configs", "models", "build", "baselines"):
        (root / folder).mkdir()
    quoted = "".join(rf"\U{ord(c):08x}" for c in text if not 0xD800 <= ord(c) < 0xE000)
    sound = "model: good\nmethods: {m: {partitioners: []}}\n"
    odd = f'model: good\n"{quoted}": 1\ntarget: "{quoted}"\nmethods: {{"{quoted}": "{quoted}"}}\n'
    name = os.fsdecode(os.fsencode(_word(text).replace("/", "_"))[:80])
    for stem, content in {"good": sound, "odd": odd, name: sound}.items():
        (root / "partition_configs" / f"{stem}.yaml").write_text(content)
        (root / "models" / f"{stem}.py").write_text("1\n")
        (root / "baselines" / f"{stem}.yaml").write_text(content)


@settings(max_examples=max(EXAMPLES // 3, 8), derandomize=True)
@given(text=hostile)
def test_no_verb_prints_what_is_obeyed(text, tmp_path_factory):
    root = tmp_path_factory.mktemp("verbs")
    _write_workspace(root, text)
    plan = Plan(open_workspace(root))
    for verb, *words in CALLS:
        printed = guard(io.StringIO())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tasks, "current_plan", lambda: plan)
            patch.setattr(sys, "stdout", printed)
            given_words = [word.replace("NAME", _word(text)) for word in words]
            run_verb(VERBS[verb], given_words, FLAGS.get(verb, {}))
        assert not obeyed(printed.getvalue()), (verb, words)


@settings(max_examples=max(EXAMPLES // 3, 8), derandomize=True)
@given(text=hostile)
def test_no_task_has_a_name_or_a_line_that_is_obeyed(text, tmp_path_factory):
    root = tmp_path_factory.mktemp("tasks")
    _write_workspace(root, text)
    plan = Plan(open_workspace(root))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "current_plan", lambda: plan)
        makers = [maker for name, maker in vars(tasks).items() if name.startswith("task_")]
        made = [task for maker in makers for task in maker()]
    texts = [f"{task.get('name') or ''}{task['doc']}" for task in made]
    assert any("good" in text for text in texts)
    assert not any(hidden(text) or "\n" in text for text in texts)


def _events(name, error):
    outcomes = {"compile": "built", "link": "failed", "validate": "not-run"}
    return [Event(k, name, name, name, outcome, error=error) for k, outcome in outcomes.items()]


@many
@given(hostile, hostile)
def test_progress_and_the_table_are_lines_of_ours(name, error):
    events, stream = _events(name, error), io.StringIO()
    reporter = Reporter(stream, {})
    with reporter.progress([], Outlook({}, None)) as show:
        for event in events:
            show(event)
    remote = dict.fromkeys(("hits", "misses", "pushed", "unsigned", "corrupt", "errors"), 1)
    remote |= {"bytes_fetched": 1, "bytes_pushed": 1, "believes_all": 1, "problem": error}
    reporter.summarize(_Elsewhere(), events, [], remote)
    assert not obeyed(stream.getvalue())
    lines = stream.getvalue().split("\n")  # progress, the table, failures, and the sums
    assert len(lines) == 3 + 5 + 3 + 1 + 1, lines


class _Elsewhere:
    """A plan and its workspace, with just what the table reads; nothing was built there."""

    packages = ()
    root = build = Path("/nonexistent")
    remote = SimpleNamespace(describe=describe_use)
    store = SimpleNamespace(remote=remote, cap=None, why_overflow=lambda: "")
    configs = SimpleNamespace(packages=(), summary=lambda package: None, glob=lambda pattern: ())
    operators = ()
    operators_folder = True
    allow = ()

    @property
    def workspace(self):
        return self

    def package(self, name):
        return Path("/nonexistent")


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@settings(max_examples=max(EXAMPLES // 3, 8), derandomize=True)
@given(hostile)
def test_bars_show_what_rich_writes_and_nothing_else(name):
    quiet, loud = _Terminal(), _Terminal()
    patch = pytest.MonkeyPatch()
    patch.setenv("TERM", "xterm")
    patch.delenv("CI", raising=False)
    for stream, word in ((quiet, "name"), (loud, name)):
        actions = [Action("quantize", word, word, word, {}, None)]
        outlook = Outlook({word: ActionStatus(word, 1, 2)}, 3.0)
        with Reporter(stream, {}).progress(actions, outlook) as show:
            for event in _events(word, word):
                show(event)
    patch.undo()
    styles = r"\x1b\[[0-9;?]*[A-Za-z]|\r"
    known = set(re.findall(styles, quiet.getvalue()))
    assert set(re.findall(styles, loud.getvalue())) <= known
    assert not hidden(re.sub(styles, "", loud.getvalue()))


def _spoil(value, text):
    """Return a record with `text` in each string that people read."""
    words = {"package", "method", "model", "target", "what", "reason", "origin", "sentence", "line"}
    if isinstance(value, dict):
        return {k: text if k in words and v else _spoil(v, text) for k, v in value.items()}
    if isinstance(value, list):
        return [text if isinstance(each, str) else _spoil(each, text) for each in value]
    return value


@settings(max_examples=max(EXAMPLES // 10, 4), derandomize=True)
@given(hostile, hostile)
def test_reports_hide_nothing_and_stay_what_they_are(name, error):
    record = _spoil({**FULL, "ok": False, "failures": [error]}, name)
    record = {**record, "package": name, "failures": [error]}
    pages = render(record) | render_all([Entry(name, record), Entry(f"{name}2", None, error)])
    for page, content in pages.items():
        assert not hidden(content.decode().replace("\t", "")), page
    Xml.fromstring(pages["junit.xml"])
    for page in ("report.md", "summary.md"):
        text = pages[page].decode()
        assert not re.search(r"^\s*::", text, re.MULTILINE), page
        prose = re.sub(r"(`+).*?\1", "", text)
        assert "<script" not in prose and "](http" not in prose, page
    assert "<script>]" not in pages["report.html"].decode()
