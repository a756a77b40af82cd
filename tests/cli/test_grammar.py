"""Command-line words: what they select, and the messages on words that select nothing."""

from types import SimpleNamespace

import pytest

from pipeline.cli.grammar import rewrite
from pipeline.cli.run_options import take_allowed
from pipeline.store.errors import PipelineError
from tests.support.bench import bench_of
from tests.support.events import read_events
from tests.support.resident import run_python

_UNITS = {"asr": (("encode", "decode"),), "vision": (("classify",), ("embed",)), "a b": ()}


class Planned:
    """A plan of three packages, the last of which has mistakes in its config."""

    packages = tuple(_UNITS)
    exporters = ("asr", "net+dtype~bf16")
    workspace = SimpleNamespace()

    def units(self, package):
        return _UNITS[package]

    def quantized(self, package):
        return ("classify",) if package == "vision" else ()

    def problems(self, package):
        return () if _UNITS[package] else ("a mistake",)

    def exporter(self, package):
        return {"asr": "asr", "vision": "net+dtype~bf16"}.get(package)


def rewritten(words, own=("mine",), executes=True):
    return " ".join(rewrite(words.split(), Planned, own, executes))


@pytest.mark.parametrize(
    ("words", "tasks"),
    [
        ("", ""),
        ("lower", "lower"),
        ("lower validate", "lower validate"),
        ("lower vision", "lower:vision"),
        ("lower vision asr validate asr", "lower:vision lower:asr validate:asr"),
        ("lower:vision validate", "lower:vision validate"),
        ("lower v*", "lower:vision"),
        ("lower:v*", "lower:vision"),
        ("lower:*", "lower:asr lower:vision lower:a%20b"),
        ("lower a%20b", "lower:a%20b"),
        ("lower vision/classify", "compile:vision/classify"),
        ("lower asr/encode", "compile:asr/encode+decode"),
        ("compile asr/encode+decode", "compile:asr/encode+decode"),
        ("compile vision", "compile:vision/classify compile:vision/embed"),
        ("compile:vision/*", "compile:vision/classify compile:vision/embed"),
        ("compile */e*", "compile:asr/encode+decode compile:vision/embed lower:a%20b"),
        ("quantize vision", "quantize:vision/classify"),
        ("validate vision/classify", "validate:vision/classify"),
        ("validate */e*", "validate:asr/encode validate:vision/embed validate:a%20b"),
        (
            "validate vision/classify asr vision/embed",
            "validate:vision/classify+embed validate:asr",
        ),
        ("validate vision/classify vision", "validate:vision"),
        ("validate:vision/classify validate", "validate"),
        ("vision/embed", "compile:vision/embed validate:vision/embed"),
        ("validate a%20b/x", "validate:a%20b"),
        ("export net", "export:net+dtype~bf16"),
        ("export vision", "export:net+dtype~bf16"),
        ("vision", "lower:vision validate:vision"),
        ("mine vision", "mine lower:vision validate:vision"),
        ("lower mine", "lower mine"),
        ("lower build/vision/vision.pte", "lower build/vision/vision.pte"),
        ("lower -x vision", "lower -x vision"),
        ("nonsense", "nonsense"),
    ],
)
def test_words_become_tasks(words, tasks):
    assert rewritten(words) == tasks


def test_a_package_alone_is_its_lowering_where_nothing_is_executed():
    assert rewritten("vision", executes=False) == "lower:vision"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lower visoin", "no package 'visoin'; did you mean 'vision'? known: asr, vision, a b"),
        ("lower:visoin", "no package 'visoin'; did you mean 'vision'? known: asr, vision, a b"),
        ("lower x*", "no package that matches 'x*'; known: asr, vision, a b"),
        ("validate vision/clasify", "vision: has no method 'clasify'; did you mean 'classify'?"),
        ("compile v*/zzz", "no package that matches 'v*' has a method 'zzz'"),
        ("quantize asr", "asr: its config quantizes nothing"),
        ("quantize vision/embed", "vision/embed: its config quantizes nothing"),
        ("export nett", "no model 'nett'; did you mean 'net'?"),
        ("export a%20b", "a%20b"),
    ],
)
def test_words_that_name_nothing(words, message):
    with pytest.raises(PipelineError) as caught:
        rewritten(words)
    assert message in str(caught.value)


def test_verdicts_that_nothing_gives_are_refused_by_the_name_of_the_option():
    message = "^--allow: is 'notjudged'; must be not-judged, not-run, or both$"
    with pytest.raises(PipelineError, match=message):
        take_allowed(["lower", "--allow", "notjudged"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plam", "no task 'plam'; did you mean 'plan'?"),
        ("pear", "no task 'pear'; did you mean 'pair'?"),
        ("list lowr", "no task 'lowr'; did you mean 'lower'?"),
        ("lower:pear", "no package 'pear'; did you mean 'pair'?"),
        ("plan --resolvd", "plan: no option '--resolvd'; did you mean '--resolved'?"),
        (
            "lower pair --frob",
            "lower: option --frob not recognized; `doit help lower` lists its options [PTE704]",
        ),
        ("lower -n x", "-n takes a whole number, not 'x' [PTE704]"),
        ("-n 1 --frob", "ERROR: option --frob not recognized; see `doit help` [PTE704]"),
        ("pair -n", "pair: option -n requires argument; `doit help pair` lists its options"),
        ("info", "ERROR: info: name one task, such as `doit info lower:vision`"),
        (
            "diff --fail-on",
            "diff: --fail-on takes a value; usage: doit diff [--markdown] [--fail-on ",
        ),
        ("diff --fail=x", "diff: no option '--fail=x'; did you mean '--fail-on'?"),
        ("-o . pair", "ERROR: -o .: can't be written: Is a directory [PTE704]"),
        ("explain pair --all", "explain: no option '--all'; known: --json; usage: doit explain "),
    ],
)
def test_nothing_is_silent(tmp_path, words, message):
    bench = bench_of("pair", tmp_path)
    assert bench.doit(*words.split()) == 3
    assert message in bench.output and len(bench.output.splitlines()) == 1


def test_a_workspace_without_configs_says_so(tmp_path):
    bench = bench_of("pair", tmp_path)
    config = bench.root / "partition_configs" / "pair.yaml"
    config.rename(config.with_name("_pair.yaml"))
    for words in ((), ("lower",), ("plan",), ("diff",)):
        assert bench.doit(*words) != 0
        assert "no packages: no config in partition_configs/; `doit init` " in bench.output
    assert bench.doit("list") == 0


@pytest.mark.slow
def test_methods_are_lowered_and_planned_alone(built):
    assert built.doit("export", "p*") == 0 and built.output == "up to date: 1 model\n"
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    assert built.doit("plan", "pair/encode") == 0
    assert built.output == "2 current\n"
    assert built.doit("plan", "p*/decode") == 0
    assert built.output.startswith("compile  pair/decode  to do")
    assert built.doit("lower", "pair/decode") == 0
    assert built.outcomes() == {"export pair": "up-to-date", "compile pair/decode": "built"}
    assert built.doit("lower", "pair", "-n", "1") == 0
    assert built.outcomes()["link pair"] == "built"
    assert read_events(built.root / "build")[0]["jobs"] == 1
    assert built.doit("quantize") == 0
    assert built.output.startswith("quantize: nothing to do: no config quantizes a method\n")
    assert built.doit("info", "pair") == 0 and "lower:pair" in built.output


def test_orphans_are_told_and_removed(built):
    config = built.root / "partition_configs" / "pair.yaml"
    config.rename(config.with_name("double.yaml"))
    (built.root / "build" / "pair" / "mine.txt").write_text("a file of the user's")
    assert built.doit("lower") == 0, built.output
    told = "build/ has stale output that no config makes: pair; `doit clean --orphans` removes it\n"
    assert told in built.output
    assert built.doit("lower") == 0 and told in built.output
    for dry, gone in ((True, False), (False, True)):
        code = f"import pipeline.cli.tasks as tasks; tasks.clean_orphans({dry})"
        done = run_python(
            "-c", code, cwd=built.root, env=built.environment, timeout=60, merged=True
        )
        assert "lower:pair - removing build/pair/pair.pte" in done.stdout
        assert (built.root / "build" / "pair" / "pair.pte").exists() is not gone
    assert [path.name for path in (built.root / "build" / "pair").iterdir()] == ["mine.txt"]
    assert built.doit("lower") == 0 and built.output == "up to date: 1 package\n"
