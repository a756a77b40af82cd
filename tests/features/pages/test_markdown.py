import json
import subprocess
import sys

from pipeline.features.pages.markdown import markdown
from pipeline.report.verdicts import package_verdict
from tests.support.bench import REPOSITORY

SETTINGS = {"atol": 1e-4, "rtol": 0.001, "min_sqnr": 40.0, "inputs": 1, "seed": 7, "steps": 2}

REASON = "the source program itself fails: RuntimeError: shape"
RUN = {"origin": "example 0", "outputs": []}


def method(name, **changes):
    ran = changes.get("runs", [RUN]) and not changes.get("not_run")
    verdict = "passed" if ran else "not run"
    return {
        "method": name,
        "kind": "program",
        "ok": True,
        "verdict": verdict if changes.get("ok", True) else "failed",
        "examples": len(changes.get("runs", [RUN, RUN])),
        "state": [],
        "max_abs": 1.2e-7,
        "mean_abs": 3.4e-8,
        "p999_abs": 9.8e-8,
        "relative": 2e-7,
        "sqnr_db": 142.2,
        "cosine": 0.99,
        "agreement": None,
        "limits": {},
        "runs": [RUN, RUN],
        "skipped": [],
        "not_run": "",
        "failures": [],
    } | changes


def validation(*methods, failures=()):
    sentences = [*(f["what"] for m in methods for f in m["failures"]), *failures]
    report = {"ok": not sentences, "methods": methods}
    return {
        "package": "seq2seq.pte",
        "ok": not sentences,
        "verdict": package_verdict(report),
        "failures": sentences,
        "settings": SETTINGS,
        "methods": list(methods),
        "seconds": {m["method"]: 0.5 for m in methods},
    }


PASSED = validation(
    method("encode"),
    method(
        "decode",
        state=["cache"],
        limits={"atol": 0.5, "rtol": 0.001, "min_cosine": 0.9, "min_agreement": 0.99},
        sqnr_db="inf",
        max_abs=0.0,
        mean_abs=0.0,
        agreement=0.995,
        runs=[RUN],
    ),
    method("get_length", kind="constant", sqnr_db=None),
)
UNRUN = validation(method("encode", runs=[], not_run="VulkanBackend: no device"), method("decode"))
WHAT = "absolute error 0.5 at [0, 1] (1, must be 0.5) exceeds 0.0006 | x"
FAILED = validation(
    method(
        "encode",
        ok=False,
        max_abs="inf",
        sqnr_db="-inf",
        skipped=[{"origin": "generated 1 (seed 7)", "reason": REASON}],
        failures=[
            {"method": "encode", "inputs": "example 0", "output": "output[1]", "what": WHAT},
            {"method": "encode", "inputs": "", "output": "", "what": "no\nsuch `thing`"},
        ],
    ),
    method("decode"),
)


def left(operator, code="", module="", reason=""):
    line = code and f"{code}  # models/m.py:3, in M.forward"
    return {"operator": operator, "line": line, "module": module, "reason": reason}


FACTS = {
    "delegation": {
        "encode": {
            "nodes": 8,
            "delegated_nodes": 6,
            "operators": 3,
            "delegated_operators": 1,
            "partitions": {"XnnpackBackend": 2},
            "undelegated": {"aten.add.Tensor": 1, "aten.mul.Tensor": 4},
            "backends": {"XnnpackBackend": {"nodes": 6, "operators": 2, "partitions": 2}},
            "subgraphs": 0,
            "left": [
                *(
                    left("aten.mul.Tensor", f"x * {n}", f"layers.{n}", "invalid dtype")
                    for n in "1223"
                ),
                left("aten.mul.Tensor", "y * `4`", "", "no | such"),
                left("aten.add.Tensor"),
            ],
            "boundary": {
                "into": {"tensors": 1, "bytes": 512},
                "out_of": {"tensors": 2, "bytes": 2 << 20},
                "copies": 1,
            },
        },
        "decode": {
            "nodes": 0,
            "delegated_nodes": 0,
            "operators": 0,
            "delegated_operators": 0,
            "partitions": {},
            "undelegated": {},
            "backends": {},
            "subgraphs": 2,
            "left": [],
            "boundary": {
                "into": {"tensors": 0, "bytes": 0},
                "out_of": {"tensors": 0, "bytes": 0},
                "copies": 0,
            },
        },
    },
    "sizes": {"seq2seq.pte": 3 << 20},
}


UNREFERENCED = "Judged against the exported program; PyTorch itself was not run."


def lines(report):
    return markdown(report).splitlines()


def rows(text, title):
    """Return the rows of a table as lists of cells."""
    table = text.split(f"### {title}\n\n")[1].split("\n\n")[0].splitlines()[2:]
    return [row.strip().strip("|").strip().split(" | ") for row in table]


def test_the_verdict_comes_first():
    assert lines(PASSED)[:3] == [
        "# seq2seq.pte: passed",
        "",
        f"2 methods match their sources, within the limits (3 runs). {UNREFERENCED}",
    ]
    assert lines(UNRUN)[0] == "# seq2seq.pte: not run"
    assert "encode could not be run on this machine (" in lines(UNRUN)[2]
    assert lines(FAILED)[0] == "# seq2seq.pte: FAILED"
    assert lines(FAILED)[2] == f"1 of 2 methods failed. {UNREFERENCED}"
    broken = validation(failures=["seq2seq.pte: does not open"])
    assert lines(broken)[2] == "1 failure."


def test_each_comparison_has_its_limits():
    lead = "Run on the examples, and on 1 generated input set (seed 7)"
    assert f"{lead}; 2 calls in sequence where a method has state." in lines(PASSED)
    found = rows("\n".join(lines(PASSED)), "Worst figures of each method")
    encode, _, decode, *_ = found
    assert found[1][1] == (
        "no reference (against the exported program; PyTorch itself was not run)"
    )
    assert encode[-1] == "–"
    assert decode[-1] == (
        "absolute error at most 0.5 + 0.001 × \\|expected\\|; cosine at least 0.9; "
        "greatest values at the same position in at least 99.0 % of rows"
    )


def test_figures_of_methods():
    figures = "1.20e−7 | 3.40e−8 | 142.2 dB | 0.990000 | –"
    calls = "source (2 calls on examples)"
    assert f"| `encode` (program) | {calls} | passed | {figures} | – |" in lines(PASSED)
    exact = "0 | 0 | exact | 0.990000 | 99.5 %"
    decode = f"| `decode` (with state) | source (1 call on examples) | passed | {exact} | "
    assert any(line.startswith(decode) for line in lines(PASSED))
    unbounded = "∞ | 3.40e−8 | −∞ | 0.990000 | –"
    assert f"| `encode` (program) | {calls} | **failed** | {unbounded} | – |" in lines(FAILED)


def test_a_method_that_never_ran_has_no_figures():
    nothing = " | ".join("–" * 6)
    assert f"| `encode` (program) | source | not run | {nothing} |" in lines(UNRUN)
    failed = validation(method("encode", ok=False, runs=[]))
    assert f"| `encode` (program) | source | **failed** | {nothing} |" in lines(failed)


def test_what_did_not_run_and_why():
    assert "| `encode` | all | VulkanBackend: no device |" in lines(UNRUN)
    reason = REASON
    assert f"| `encode` | generated 1 (seed 7) | {reason} |" in lines(FAILED)


def test_failures_of_methods_come_before_those_of_the_package():
    """For example failed gates, which a later validation of the package may add to the record."""
    escaped = WHAT.replace("|", "\\|")
    script = f"`python build/{FAILED['package']}/reproduce/encode/reproduce.py`"
    assert rows(markdown(FAILED), "Failures")[:2] == [
        [f"example 0, output[1]: {escaped} [PTE502]", "`encode`", "–", script],
        ["no such `thing` [PTE500]", "`encode`", "–", "–"],
    ]
    both = {**FAILED, "failures": [*FAILED["failures"], "too large"]}
    assert rows(markdown(both), "Failures")[-1] == ["too large [PTE500]", "package", "–", "–"]


def test_delegation_by_method():
    encode, decode = rows(markdown({**PASSED, **FACTS}), "Delegation by method")
    assert decode[:4] == ["`decode`", "–", "–", "–"] and decode[-1] == "2"
    assert encode == [
        "`encode`",
        "6 of 8 (75.0 %)",
        "1 of 3 (33.3 %)",
        "XnnpackBackend: 6 in 2 partitions",
        "512 B (1 tensor)",
        "2.1 MB (2 tensors)",
        "1",
        "0",
    ]


def test_calls_that_were_left_stand_with_line_and_module():
    left = rows(markdown({**PASSED, **FACTS}), "Left to portable kernels")
    assert [row[:4] for row in left[:2]] == [
        ["`aten.mul.Tensor` (in layers.2)", "`encode`", "2", "invalid dtype"],
        ["`aten.add.Tensor`", "`encode`", "1", "–"],
    ]
    assert left[0][4] == "`x * 2` (models/m.py:3, in M.forward)"
    assert left[-1][3:] == ["no \\| such", "`` y * `4` `` (models/m.py:3, in M.forward)"]


def test_of_many_calls_the_first_are_shown():
    counts = dict(FACTS["delegation"]["encode"])
    counts["left"] = [left("aten.mul.Tensor", f"x * {n}", f"layers.{n}") for n in range(120)]
    text = markdown({**PASSED, "delegation": {"encode": counts}})
    title = "Left to portable kernels (the first 100 of 120; report.json has all)"
    assert len(rows(text, title)) == 100


def test_the_bundled_program_with_its_tolerances():
    suite = {"cases": ["a", "b"], "rtol": 1e-3, "atol": 0.2, "state": ["cache"], "left_out": []}
    none = {"cases": [], "rtol": 0, "atol": 0, "state": []}
    left_out = {**none, "left_out": [{"origin": "", "reason": "output 1 is not a tensor"}]}
    bundle = {"file": "m.bpte", "size": 2048, "methods": {"decode": suite, "encode": left_out}}
    text = markdown({**PASSED, "bundle": bundle})
    assert "<summary>For the device</summary>\n\nm.bpte has 2,048 bytes." in text
    assert rows(text, "Cases, and tolerances for the runtime") == [
        ["`decode`", "2", "0.001", "0.2", "for each case: it has state"],
        ["`encode`", "0", "0", "0", "once"],
    ]
    assert rows(text, "Left out") == [["`encode`", "all", "output 1 is not a tensor"]]


def test_running_times_leave_no_trace():
    """Except for the latency, which is measured on purpose (tests/features/latency/)."""
    assert markdown(PASSED | {"seconds": {"encode": 9.25}}) == markdown(PASSED)


def test_every_row_has_as_many_cells_as_its_head():
    for table in markdown({**FAILED, **FACTS}).split("\n\n"):
        if table.startswith("|"):
            assert len({row.replace("\\|", "").count("|") for row in table.splitlines()}) == 1


def test_a_report_needs_no_torch():
    code = (
        "import json, sys; from pipeline.features.pages.markdown import markdown; "
        "markdown(json.load(sys.stdin)); "
        "sys.exit(bool({'torch', 'jinja2'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, cwd=REPOSITORY, input=json.dumps(FAILED), text=True)
    assert finished.returncode == 0
