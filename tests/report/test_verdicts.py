"""No report claims more than was observed: what never ran is "not run", in every format."""

import re

import pytest

from pipeline.features.headlines.figures import find_headline
from pipeline.features.pages.heads import lead
from pipeline.report.failures import (
    describe_failed,
    describe_failure,
    failed_checks,
    first_culprit,
    group_failures,
)
from pipeline.report.packages import Entry
from pipeline.report.records import name_kernels
from pipeline.report.render import render, render_all
from tests.features.pages.test_markdown import method, rows, validation

WHY = "VulkanBackend: the runtime in ExecuTorch's wheel has no Vulkan delegate"
LENGTH = method("get_length", kind="constant", runs=[{"origin": "constant", "outputs": []}])


def unrun(name, **changes):
    return method(name, runs=[], not_run=WHY, **changes)


NONE = validation(unrun("encode"), unrun("decode"))
SOME = validation(unrun("encode"), method("decode"))
CONSTANTS = validation(unrun("encode"), LENGTH)
UNCHECKED = {
    "gate": "max_latency_ratio",
    "method": "encode",
    "unit": "times",
    "figure": None,
    "limit": 5.0,
    "ok": True,
    "sentence": f"encode: max_latency_ratio was not checked, since it did not run: {WHY}",
}
CLAIMS = re.compile(r"\bpassed\b|same function|the functions|gives what|give what", re.IGNORECASE)


STILL = {
    "output": "output[1]",
    "calls": 4,
    "largest": 0.0,
    "typical": 0.0,
    "share": 0.0,
    "judged": False,
    "reason": "output[1] is the same in all 4 calls",
    "nonfinite": 3,
    "example_values": 12,
}
FIXED = {"output": "output[0]", "calls": 4, "judged": True, "fixed": "nothing"}
FIXED |= {name: STILL[name] for name in ("largest", "typical", "share")}


def test_the_head_counts_what_is_no_number_and_the_table_says_how_far_outputs_move():
    moving = method(
        "encode",
        verdict="not judged",
        verdict_reason=STILL["reason"],
        movement=[FIXED, STILL],
    )
    failed = method("decode", ok=False, movement=[{**STILL, "judged": True}])
    counted = (
        "On the examples, the source of {} returns NaN or infinity in 3 of 12 values of output[1]."
    )
    report = validation(moving)
    assert counted.format("encode") in lead(report)
    assert counted.format("decode") in lead(validation(failed))
    first, second = rows(render(report)["report.md"].decode(), "How far outputs move across calls")
    assert first[-2:] == ["yes", "a constant of the program"]
    assert second[-2:] == ["not judged", STILL["reason"]]


def test_the_head_says_that_a_source_is_quantized():
    told = (
        "The source of encode is already quantized, so there is no float source to compare it with."
    )
    assert told in lead(validation(method("encode", source_is_quantized=True)))
    assert told not in lead(validation(method("encode")))


@pytest.mark.parametrize("report", [NONE, CONSTANTS, {**NONE, "gates": [UNCHECKED]}])
def test_a_package_that_never_ran_is_not_run_and_nothing_says_that_it_passed(report):
    made = render(report)
    for name in ("report.md", "report.html"):
        text = made[name].decode()
        assert "not run" in text
        if report is not CONSTANTS:  # its constant did pass
            assert not CLAIMS.search(
                re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.S)
            )
    assert report["verdict"] == "not run"
    assert made["report.md"].decode().startswith("# seq2seq.pte: not run\n")
    overview = render_all([Entry("seq2seq", report)])
    for name in ("summary.md", "index.html"):
        text = overview[name].decode()
        assert "1 package: 1 not run" in text
        assert not re.search(r"\bpassed\b", text)


UNREFERENCED = "Judged against the exported program; PyTorch itself was not run."


def test_what_ran_in_part_says_which_part():
    assert SOME["verdict"] == "not run"
    assert lead(SOME) == (
        "decode matches its source, within the limits (2 runs). "
        f"encode could not be run on this machine ({WHY}). {UNREFERENCED}"
    )
    assert lead(NONE) == (
        f"Nothing was run: 2 methods could not be run on this machine ({WHY}). "
        "Their declared inputs and outputs match their sources'."
    )
    both = render_all([Entry("a", SOME), Entry("b", validation(method("decode")))])
    assert "2 packages: 1 not run, 1 passed" in both["summary.md"].decode()
    assert "all passed" not in both["index.html"].decode()


def test_a_method_that_failed_is_not_said_to_differ_from_its_source():
    broken = method(
        "encode",
        ok=False,
        runs=[],
        failures=[{"method": "encode", "inputs": "", "output": "", "what": "does not load"}],
    )
    report = validation(broken, method("decode"))
    assert lead(report) == f"1 of 2 methods failed. {UNREFERENCED}"


def test_what_there_was_no_time_for_is_not_run():
    late = method("late", runs=[], left_out=["all"])
    report = validation(late, method("decode"))
    assert report["verdict"] == "not run"
    made = render(report)
    assert ". 1 method left out: validate.budget was exhausted. " in lead(report)
    late_row, *_ = rows(made["report.md"].decode(), "Worst figures of each method")
    assert late_row[2] == "not run"
    cases = made["junit.xml"].decode().split('.late"')[1:]
    assert len(cases) == 2
    assert all('<skipped message="validate.budget was exhausted"' in case for case in cases)


def pooled(sqnr, agreeing=9, rows=10):
    figures = {"max_abs": 0.5, "sqnr_db": sqnr, "cosine": 0.9, "agreement": agreeing / rows}
    return {
        "output": "output",
        "calls": 4,
        "values": 40,
        **figures,
        "agreeing": agreeing,
        "rows": rows,
    }


def quantized(verdict, reason="", limits=None, sqnr=23.1, **changes):
    found = {
        "verdict": verdict,
        "reason": reason,
        "limits": limits or {},
        "floor": 3.0,
        "examples": [pooled(sqnr)],
        "generated": [],
    }
    held = {"limits": {"atol": 0.2, "rtol": 0.001}, "limits_reason": "", "max_abs": 0.05}
    figures = {"sqnr_db": sqnr, "quantized": held, "quantization": found, "examples": 2}
    return method("decode", **figures, **changes)


def test_a_quantization_that_nothing_judges_is_not_said_to_have_passed():
    why = "no limit on its accuracy; set `min_sqnr`"
    report = validation(method("encode"), quantized("not judged", why))
    assert report["verdict"] == "not judged"
    assert f". The quantization of decode is not judged: {why}. " in lead(report)
    page = render(report)["report.html"].decode()
    assert '<span class="verdict warn">not judged</span>' in page
    summary = render_all([Entry("a", report)])["summary.md"].decode()
    assert "1 package: 1 not judged" in summary and why in summary
    case = render(report)["junit.xml"].decode().split('name="quantization"')[1]
    assert f'<skipped message="not judged: {why}"' in case.split("</testcase>")[0]


def test_what_a_float_method_loses_is_not_shown_as_its_lowering():
    """Its own figures compare it with its program, on the state that a quantized method writes."""
    why = "no limit on its accuracy; lost in the quantization of 'prefill', whose state it reads"
    decode = quantized("not judged", why)
    del decode["quantized"]
    loss = {"writers": ["prefill"], "figures": {**decode, "sqnr_db": 31.7, "max_abs": 0.0625}}
    decode["quantization"] |= loss
    assert find_headline([decode])[:3] == ("not judged", "31.7 dB", "none")
    report = validation(method("prefill"), decode)
    assert f"The accuracy of decode is not judged: {why}." in lead(report)
    page = render(report)["report.md"].decode()
    _, _, lowering, lost, *_ = rows(page, "Worst figures of each method")
    assert lowering[1].startswith("source") and "23.1 dB" in lowering
    assert lost[1] == "float program (calls after prefill, on examples)" and "31.7 dB" in lost


def test_the_worst_verdict_leads_with_its_figure_and_limit():
    encode = method("encode", limits={"atol": 1e-4}, limits_from="float32")
    worst = find_headline([encode, quantized("not judged")])
    assert worst[:3] == ("not judged", "23.1 dB", "none")
    judged = quantized("passed", limits={"min_sqnr": 20.0, "min_agreement": 0.95})
    assert find_headline([judged])[:3] == ("passed", "90.0 %", "≥ 95.0 %")  # misses this limit
    wrong = method("encode", ok=False, limits={"atol": 1e-4}, limits_from="float32")
    assert find_headline([wrong, judged])[:3] == ("failed", "1.20e−7", "0.0001 float32")


def test_failures_of_one_cause_stand_in_one_row():
    failures = [
        {
            "method": name,
            "inputs": f"example {number}",
            "output": "output",
            "what": f"SQNR {sqnr} dB is below 20 dB",
            "about": "quantization",
            "of_limit": ratio,
        }
        for name in ("encode", "decode")
        for number, (sqnr, ratio) in enumerate([(19.0, 1.1), (12.5, 2.4), (18.0, 1.3)])
    ]
    methods = [
        method(name, ok=False, failures=[f for f in failures if f["method"] == name])
        for name in ("encode", "decode")
    ]
    (group,) = group_failures(methods)
    assert group.sentence == ("example 1, output: SQNR 12.5 dB is below 20 dB (and 5 more like it)")
    report = validation(*methods)
    report["failures"] = [f"{f['method']}: {describe_failure(f)}" for f in failures]
    (row,) = rows(render(report)["report.md"].decode(), "Failures")
    assert row[1] == "`encode, decode`"


def test_a_gate_that_was_not_checked_has_not_been_met():
    report = {
        **SOME,
        "gates": [UNCHECKED, {**UNCHECKED, "gate": "max_size", "figure": 1.0, "sentence": ""}],
    }
    (unchecked, met) = rows(render(report)["report.md"].decode(), "Limits that the config sets")
    assert unchecked[1] == "not checked" and met[1] == "passed"
    summary = render_all([Entry("seq2seq", report)])["summary.md"].decode()
    assert "1 of 2 (1 not checked)" in summary
    xml = render(report)["junit.xml"].decode()
    case = xml.split('name="max_latency_ratio"')[1].split("</testcase>")[0]
    assert "<skipped" in case and "was not checked" in case


def test_outputs_that_failed_are_not_shown_as_passed():
    outputs = [{"max_abs": 0.5, "mean_abs": 0.1, "sqnr_db": 1.0}] * 2
    for names, failing in ((["output"], "output"), (["out['a']", "out['b']"], "out['b']")):
        run = {"origin": "example 0", "outputs": outputs[: len(names)]}
        failure = {"method": "m", "inputs": "example 0", "output": failing, "what": "wrong"}
        own = method("m", ok=False, runs=[run], outputs=names, failures=[failure])
        page = render(validation(own))["report.html"].decode()
        calls = page.split('id="calls"')[1].split("</table>")[0]
        assert calls.count(">failed<") == 1
        assert calls.count(">passed<") == len(names) - 1


def test_a_constant_that_is_wrong_fails_the_numbers_and_not_the_interface():
    failure = {"method": "get_length", "inputs": "", "output": "", "what": "returns 3, must be 4"}
    report = validation({**LENGTH, "ok": False, "failures": [failure]})
    xml = render(report)["junit.xml"].decode()
    numerics = xml.split('name="numerics"')[1].split("</testcase>")[0]
    assert "returns 3" in numerics
    assert "returns 3" not in xml.split('name="interface"')[1].split("<testcase")[0]


def agreeing(*counts):
    runs = [
        {
            "origin": f"example {n}",
            "outputs": [
                {
                    "max_abs": 0.1,
                    "mean_abs": 0.1,
                    "sqnr_db": 9.0,
                    "agreement": a / b,
                    "agreeing": a,
                    "rows": b,
                }
            ],
        }
        for n, (a, b) in enumerate(counts)
    ]
    return validation(method("classify", runs=runs, agreement=min(a / b for a, b in counts)))


def test_agreement_of_few_examples_is_a_count():
    def shown(report):
        text = render(report)["report.md"].decode()
        return rows(text, "Worst figures of each method")[0][-2]

    assert shown(agreeing((1, 1), (0, 1), (1, 1), (1, 1))) == "3 of 4"
    assert shown(agreeing((1, 1))) == "1 of 1"
    assert shown(agreeing((990, 1000), (1000, 1000))) == "1,990 of 2,000 (99.5 %)"
    large = agreeing((1, 1), (1, 1), (0, 1))
    large["methods"][0]["runs"][-1] |= {"case": "large", "generated": True}
    assert shown(large) == "2 of 2"


def test_one_operator_of_many_methods_is_one_row():
    what = "does not load: kernel 'aten::cummax.out' not found; of {}  # models/m.py:{}, in M.{}"
    methods = [
        method(
            f"m{number}",
            ok=False,
            failures=[
                {
                    "method": f"m{number}",
                    "inputs": "",
                    "output": "",
                    "what": what.format(f"x.cummax({number})", 10 + number, f"forward{number}"),
                }
            ],
            culprits=[{"operator": "aten.cummax.default"}],
        )
        for number in range(12)
    ]
    (group,) = group_failures(methods)
    assert len(group.methods) == 12 and group.more == 11
    methods[3]["culprits"] = [{"operator": "aten.add.Tensor"}]
    assert len(group_failures(methods)) == 2


def test_what_failed_is_named_by_its_check():
    output = {"method": "m", "inputs": "example 0", "output": "output", "what": "wrong"}
    whole = {"method": "n", "inputs": "", "output": "", "what": "does not load"}
    gate = {**UNCHECKED, "gate": "max_size", "ok": False, "figure": 9.0, "sentence": "too large"}
    first = method("m", ok=False, failures=[output])
    second = method("n", ok=False, failures=[whole], runs=[])
    report = {**validation(first, second), "gates": [gate, UNCHECKED]}
    report["failures"] = ["m.pte has 3 bytes", "m: example 0, output: wrong", "n: does not load"]
    report["failures"] += ["too large"]
    assert failed_checks(report) == ["package", "numerics", "interface", "gate max_size"]
    said = describe_failed({**report, "failures": ["too large"]}, "seq2seq")
    assert re.search(r"\(the report lists \d more causes: build/seq2seq/report\.md\)$", said), said
    assert first_culprit(report) == []
    report["methods"][1]["culprits"] = [{"what": "first divergence: aten.add"}, {"what": "then"}]
    assert first_culprit(report) == ["  n: first divergence: aten.add"]


def test_left_operators_are_on_portable_kernels_only_if_all_are():
    assert name_kernels(["aten.add.Tensor", "dim_order_ops._clone_dim_order", "mul"]) == (
        "portable kernels"
    )
    assert name_kernels(["aten.add.Tensor", "llama.update_cache"]) == "kernels"
    assert name_kernels(["quantized_decomposed.quantize_per_tensor.out"]) == "kernels"


def test_an_sqnr_beyond_what_a_baseline_holds_is_no_change():
    baseline = {"methods": {"m": {"sqnr_db": [120.0]}}}
    report = {**validation(method("m", sqnr_db=139.2)), "baseline": baseline}
    (row,) = rows(render(report)["report.md"].decode(), "Against the accepted baseline")
    assert row[1:] == ["SQNR", "120.0 dB", "120.0 dB", "none"]


def test_what_nothing_ran_on_was_held_to_nothing():
    assert "Run on the examples" not in render(NONE)["report.md"].decode()
    assert "Run on the examples" in render(SOME)["report.md"].decode()


def test_a_failure_that_was_not_looked_into_says_so_in_junit_too():
    output = {"method": "m", "inputs": "example 0", "output": "output", "what": "wrong"}
    note = "m: not examined: 8 methods are, of 9 that failed"
    report = validation(method("m", ok=False, failures=[output], culprit_notes=[note]))
    for name in ("junit.xml", "report.md", "report.html"):
        assert note in render(report)[name].decode()


def referenced(verdict, **more):
    reference = {
        "verdict": verdict,
        "reason": "" if verdict == "passed" else "decode: it diverges",
        "compared": ["the reference of 'decode'"],
        "calls": 4,
        "max_abs": 0.0 if verdict == "passed" else 1.5,
        "of_limit": 0.0 if verdict == "passed" else 80.0,
        "skipped": [{"origin": "generated 1", "reason": "both raise"}],
    }
    if verdict == "failed":
        what = "the export differs from the reference of 'decode': absolute error 1.5"
        failure = {"method": "decode", "inputs": "example 0", "output": "output", "what": what}
        more["failures"] = [{**failure, "about": "reference"}]
        more |= {"ok": False, "verdict": "passed"}  # the verdict on its lowering
    return method("decode", reference=reference, **more)


def test_an_export_has_a_verdict_of_its_own():
    """A package that matches its export still fails if the export doesn't match PyTorch."""
    report = validation(method("encode"), referenced("passed"))
    assert report["verdict"] == "passed"
    assert "The exported program matches PyTorch in eager mode exactly (4 calls)." in lead(report)
    assert lead(report).endswith(f" encode: {UNREFERENCED.removeprefix('Judged ')}")
    for verdict in ("not run", "not judged", "failed"):
        own = referenced(verdict)
        report = validation(method("encode"), own)
        assert own["verdict"] == "passed" and report["verdict"] == verdict
        assert find_headline([own])[:3] == (verdict, "1.50", "reference")
        made = render(report)
        row = rows(made["report.md"].decode(), "Worst figures of each method")[3]
        assert row[1] == "reference (4 calls of the export, by the reference of 'decode')"
        assert row[2].strip("*") == verdict
        case = made["junit.xml"].decode().split('name="reference"')[1].split("</testcase>")[0]
        assert ("<failure" if verdict == "failed" else f'<skipped message="{verdict}: ') in case


def test_what_was_not_compared_with_a_reference_is_listed():
    text = render(validation(referenced("passed")))["report.md"].decode()
    assert ["`decode`", "generated 1, against the reference", "both raise"] in rows(text, "Not run")
