"""The end of a run says why methods are not judged."""

from pipeline.features.summary.unjudged import describe_unjudged


def method(name, verdict="passed", reason="", **parts):
    return {"method": name, "verdict": verdict, "verdict_reason": reason, **parts}


def judged(verdict, reason):
    return {"verdict": verdict, "reason": reason}


def test_each_reason_has_a_line_with_its_methods():
    no_limit = judged("not judged", "no limit on its accuracy")
    reports = {
        "b": {"methods": [method("run", quantization=no_limit)]},
        "a": {
            "methods": [
                method("encode", "not judged", "no elements"),
                method("decode", quantization=no_limit, reference=judged("passed", "")),
                method("step", "failed", "is wrong", quantization=no_limit),
                method("fine", quantization=judged("passed", "within min_sqnr")),
            ]
        },
    }
    assert list(describe_unjudged(reports)) == [
        "not judged: a/encode: no elements",
        "not judged: a/decode, b/run: no limit on its accuracy",
    ]
    assert list(describe_unjudged({})) == []


def test_many_reasons_are_counted():
    methods = [method(f"m{number}", "not judged", f"SQNR {number} dB") for number in range(5)]
    lines = list(describe_unjudged({"a": {"methods": methods}}))
    assert lines[:3] == [f"not judged: a/m{n}: SQNR {n} dB" for n in range(3)]
    assert lines[3:] == ["not judged: 2 more reasons in the reports"]
