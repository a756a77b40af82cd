"""Options and patterns in a command line, and how they are expanded."""

import json

import pytest

from pipeline.features.run_options.words import rewrite
from pipeline.store.errors import PipelineError
from tests.support.bench import bench_of


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A workspace of two packages with the methods `decode` and `encode`."""
    bench = bench_of("pair", tmp_path_factory.mktemp("words"))
    configs = bench.root / "partition_configs"
    (configs / "twin.yaml").write_text((configs / "pair.yaml").read_text())
    return bench.root


@pytest.fixture(autouse=True)
def store(monkeypatch, root):
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(root / ".store"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lower pair -j 4", "-n 4 lower pair"),
        ("lower --jobs=4 -a", "-n 4 lower -a"),
        ("-j4", "-n 4"),
        ("--db-file x lower -k pair -a", "--db-file x lower pair -a"),
        ("-c -q", "-r quiet -c"),
        ("-n 1 -v pair", "-v -n 1 pair"),
        ("lower -xq", "--no-continue -r quiet lower"),
        (
            "validate --fail-fast --quiet --allow failed",
            "--no-continue -r quiet validate --allow failed",
        ),
        ("p*", "pair"),
        ("*/enc*", "pair/enc* twin/enc*"),
        ("lower p*", "lower p*"),
        ("lower -k pair", "lower pair"),
        ("-k ENC", "lower pair/encode twin/encode validate pair/encode twin/encode"),
        ("lower -k twin/enc", "lower twin/encode"),
        ("lower -k t* -v", "lower twin -v"),
        ("lower pair validate twin -k decode", "lower pair/decode validate twin/decode"),
        ("lower:pair -k dec", "lower pair/decode"),
        ("pair -k dec", "pair/decode"),
        ("plan -k dec", "plan pair/decode twin/decode"),
        ("contract --all -k dec", "contract pair twin --all"),
        ("diff main -k twin", "diff main twin"),
        ("lower --last-failed", "lower pair twin"),
        ("mine -x", "mine -x"),
        ("backends -k x", "backends -k x"),
        ("init -q", "init -q"),
    ],
)
def test_a_run_is_rewritten(root, line, words):
    assert " ".join(rewrite("run", line.split(), root)) == words


def test_expressions_have_operators(root):
    for expression, words in (
        ("pair and not enc", "pair/decode"),
        ("not pair", "twin"),
        ("pair/enc or twin/dec", "pair/encode twin/decode"),
    ):
        assert rewrite("run", ["lower", "-k", expression], root) == ["lower", *words.split()]


def test_doits_own_commands_take_patterns(root):
    assert rewrite("clean", ["t*", "--dry-run"], root) == ["--dry-run", "twin"]
    assert rewrite("list", ["--all", "-k"], root) == ["--all", "-k"]  # doit's own options


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lower -j x", "-j takes a whole number, not 'x'"),
        ("-n x pair", "-n takes a whole number, not 'x'"),
        ("lower -j", "-j takes a value"),
        ("lower pair -k zzz", "nothing matches -k 'zzz' in these packages: pair"),
        ("quantize -k pair", "nothing matches -k 'pair' in these packages: pair, twin"),
        ("z*", "no package that matches 'z*'; known: pair, twin"),
        (
            "lower -x --failfast",
            "no option '--failfast'; did you mean '--fail-fast'? known: --fail-fast, --quiet, "
            "--last-failed, --lf, --jobs",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(root, line, message):
    with pytest.raises(PipelineError) as caught:
        rewrite("run", line.split(), root)
    assert str(caught.value) == message
    with pytest.raises(PipelineError, match="lacks a word"):
        rewrite("run", ["lower", "-k", "pair and "], root)


def test_the_last_run_says_what_failed(root, capsys):
    action = {"kind": "compile", "model": "pair", "method": "encode", "outcome": "failed"}
    record = root / "build" / "run.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps({"actions": [{**action, "package": "twin"}]}))
    assert rewrite("run", ["lower", "--lf"], root) == ["lower", "twin"]
    record.write_text("damaged")
    assert rewrite("run", ["lower", "--lf"], root) == ["lower", "pair", "twin"]
    assert capsys.readouterr().out.startswith("nothing failed in the last run")


def test_a_quiet_run_that_fails_fast_prints_failures_alone(tmp_path):
    bench = bench_of("pair", tmp_path)
    for name in ("other", "twin"):
        config = (bench.root / "partition_configs" / "pair.yaml").read_text()
        text = config.replace("model: pair", f"model: {name}")
        (bench.root / "partition_configs" / f"{name}.yaml").write_text(text)
        (bench.root / "models" / f"{name}.py").write_text("raise ValueError('no weights')\n")
    assert bench.doit("lower", "-xq", "-k", "not pair") == 1
    outcomes = bench.outcomes()
    assert sorted(outcomes.values()) == ["failed", "not-run"] and len(outcomes) == 2
    assert bench.output.count(" failed in stage") == 1 and "\npackage " not in bench.output
    assert bench.doit("lower", "--last-failed") == 1
    assert [*bench.outcomes().values()].count("failed") == 2
    assert "\npackage " in bench.output and "pair" not in bench.output.partition("\npackage ")[2]
