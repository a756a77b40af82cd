"""Methods validated without the rest of their package: what runs, what the report says about the
rest, and that neither is mistaken for the other."""

import json

import pytest

from pipeline.validate.sequences import with_shared_state


def report_of(bench):
    return json.loads(bench.bytes_of("pair", "report.json"))


def validate(bench, *words):
    """Validate `words` and return the outcome."""
    assert bench.doit("validate", *words) == 0, bench.output
    found = {title: how for title, how in bench.outcomes().items() if title.startswith("validate")}
    ((title, how),) = found.items()
    assert title == f"validate {'/'.join(words) or 'pair'}"
    return how


def test_one_method_is_validated_and_the_report_says_so(built):
    built.edit("partition_configs/pair.yaml", "constant", "validate: {seed: 5}\nconstant")
    assert validate(built, "pair/encode") == "built"
    assert "pair: decode, get_size were not requested\n" in built.output
    report = report_of(built)
    assert report["only"] == ["encode"]
    assert (report["ok"], report["verdict"]) == (True, "passed")
    ran = {method["method"]: bool(method["runs"]) for method in report["methods"]}
    assert ran == {"encode": True, "decode": False, "get_size": False}
    assert report["methods"][1]["left_out"] == ["not requested"]
    assert report["methods"][1]["latency"] is None
    for page in ("report.md", "report.html", "junit.xml"):
        assert b"not requested" in built.bytes_of("pair", page)
    assert b"not requested" in (built.root / "build" / "index.html").read_bytes()

    assert built.doit("plan") == 0
    assert "validate  pair  to do  " in built.output, built.output
    assert "only encode was validated last" in built.output
    assert built.doit("baseline") == 1
    assert "pair: its current build is not validated" in built.output


@pytest.mark.slow
def test_the_whole_answers_for_its_methods_and_never_the_other_way(built):
    assert validate(built, "pair/encode") == "up-to-date"  # the whole package was validated
    assert "only" not in report_of(built)
    built.edit("partition_configs/pair.yaml", "constant", "validate: {seed: 5}\nconstant")
    assert validate(built, "pair/encode") == "built"
    assert validate(built, "pair/encode") == "up-to-date"
    assert validate(built, "pair/decode") == "built"
    assert validate(built, "pair/encode") == "hit"
    assert report_of(built)["only"] == ["encode"]
    assert validate(built) == "built"
    assert report_of(built)["verdict"] == "passed" and "only" not in report_of(built)
    assert validate(built, "pair/encode") == "up-to-date"
    (built.root / "build" / "pair" / "report.json").unlink()
    assert validate(built, "pair/encode") == "hit"
    assert "only" not in report_of(built)
    assert built.doit("-a", "validate:pair/encode") == 0, built.output
    assert report_of(built)["only"] == ["encode"]


@pytest.mark.slow
def test_a_method_that_fails_fails_alone(built):
    built.edit(
        "partition_configs/pair.yaml",
        "constant",
        "validate: {methods: {decode: {gates: {max_planned_memory: 1}}}}\nconstant",
    )
    assert validate(built, "pair/encode") == "built"
    (gate,) = report_of(built)["gates"]
    assert gate["ok"] and gate["sentence"].endswith("since it was not requested")
    assert built.doit("validate", "pair/decode") == 1
    assert "gate max_planned_memory" in built.output
    assert built.doit("validate", "pair/decode", "pair/encode") == 1  # together, the whole package
    assert "only" not in report_of(built)


@pytest.mark.parametrize(
    ("asked", "sequences", "found"),
    [
        (["a"], [], "a"),
        (["b"], [("a", "b")], "ab"),
        (["c"], [("a", "b")], "c"),
        (["d"], [("a", "b"), ("b", "c"), ("c", "d")], "abcd"),
    ],
)
def test_methods_that_share_state_come_along(asked, sequences, found):
    assert with_shared_state(asked, dict.fromkeys("abcd"), sequences, 2) == list(found)
