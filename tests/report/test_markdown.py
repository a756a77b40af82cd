import json
import subprocess
import sys
from pathlib import Path

from pipeline.report.markdown import markdown

SETTINGS = {"atol": 1e-4, "rtol": 0.001, "min_sqnr": 40.0, "inputs": 1, "seed": 7, "steps": 2}


def method(name, **changes):
    return {
        "method": name,
        "kind": "program",
        "ok": True,
        "state": [],
        "max_abs": 1.2e-7,
        "mean_abs": 3.4e-8,
        "p999_abs": 9.8e-8,
        "relative": 2e-7,
        "sqnr_db": 142.2,
        "cosine": 0.99,
        "agreement": None,
        "limits": {},
        "runs": [{}, {}],
        "skipped": [],
        "not_run": "",
        "failures": [],
    } | changes


def validation(*methods, failures=()):
    sentences = [*(f["what"] for m in methods for f in m["failures"]), *failures]
    return {
        "package": "seq2seq.pte",
        "ok": not sentences,
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
        runs=[{}],
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
        skipped=[{"origin": "generated 1 (seed 7)", "reason": "RuntimeError: shape"}],
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


MANIFEST = {
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
            "border": {
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
            "border": {
                "into": {"tensors": 0, "bytes": 0},
                "out_of": {"tensors": 0, "bytes": 0},
                "copies": 0,
            },
        },
    },
    "sizes": {"seq2seq.pte": 3 << 20},
}

GOLDEN = """\
# seq2seq.pte: passed, 3 methods

Limits: absolute error at most 0.0001 + 0.001 x |expected|; SQNR at least 40 dB; \
1 generated input set (seed 7); 2 calls in sequence where a method has state.

Limits of `decode`: absolute error at most 0.5 + 0.001 x |expected|; cosine at least 0.9; \
greatest values at the same place in at least 99.0% of rows.

| method | kind | runs | max abs error | 99.9 % abs error | mean abs error | relative error | \
worst SQNR | cosine | agreement | verdict |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| `encode` | program | 2 | 1.2e-07 | 9.8e-08 | 3.4e-08 | 2e-07 | 142.2 dB | 0.990000 | - \
| passed |
| `decode` | with state | 1 | 0 | 9.8e-08 | 0 | 2e-07 | exact | 0.990000 | 99.5% | passed |
| `get_length` | constant | 2 | 1.2e-07 | 9.8e-08 | 3.4e-08 | 2e-07 | - | 0.990000 | - | passed |

## Delegation

| method | nodes delegated | operators delegated | backends | sub-graphs |
| --- | --- | --- | --- | ---: |
| `decode` | 0 of 0 | 0 of 0 | - | 2 |
| `encode` | 6 of 8 (75.0 %) | 1 of 3 (33.3 %) | XnnpackBackend: 6 of 8 (75.0 %) in 2 partitions \
| 0 |

## Left to portable kernels

| method | operator | times | why | lines | modules |
| --- | --- | ---: | --- | --- | --- |
| `encode` | `aten.mul.Tensor` | 4 | invalid dtype | `x * 1 # models/m.py:3, in M.forward`; \
`x * 2 # models/m.py:3, in M.forward`; `x * 3 # models/m.py:3, in M.forward` \
| `layers.1`; `layers.2`; `layers.3` |
| `encode` | `aten.add.Tensor` | 1 | - | - | - |
| `encode` | `aten.mul.Tensor` | 1 | no \\| such | `` y * `4` # models/m.py:3, in M.forward `` | - |

## Across the borders of delegates

| method | in, per call | out, per call | copies at borders |
| --- | --- | --- | ---: |
| `encode` | 1 tensor, 512 B | 2 tensors, 2.1 MB | 1 |

## Sizes

| file | bytes | MiB |
| --- | ---: | ---: |
| `seq2seq.pte` | 3,145,728 | 3.00 |
"""


def test_a_report_of_a_package_that_passed():
    assert markdown(PASSED, MANIFEST) == GOLDEN


def test_a_report_without_a_manifest_ends_after_the_methods():
    assert markdown(PASSED) == GOLDEN.split("\n## Delegation")[0]


def test_a_report_tells_what_did_not_run_and_why():
    lines = markdown(UNRUN).splitlines()
    assert lines[0] == "# seq2seq.pte: passed, 2 methods, 1 not run"
    assert "| `encode` | program | 0 | - | - | - | - | - | - | - | not run |" in lines
    assert "| `encode` | all | VulkanBackend: no device |" in lines


def test_a_report_of_a_package_that_failed():
    lines = markdown(FAILED).splitlines()
    assert lines[0] == "# seq2seq.pte: FAILED, 2 failures in 1 of 2 methods"
    figures = "inf | 9.8e-08 | 3.4e-08 | 2e-07 | -inf | 0.990000 | -"
    assert f"| `encode` | program | 2 | {figures} | FAILED |" in lines
    escaped = WHAT.replace("|", "\\|")
    assert f"| `encode` | example 0 | output[1] | {escaped} |" in lines
    assert "| `encode` | - | - | no such `thing` |" in lines
    reason = "the source program itself fails: RuntimeError: shape"
    assert f"| `encode` | generated 1 (seed 7) | {reason} |" in lines


def test_failures_of_the_package_itself_are_told():
    lines = markdown(validation(failures=["seq2seq.pte: does not open"])).splitlines()
    assert lines[0] == "# seq2seq.pte: FAILED, 1 failure"
    assert lines[-1] == "| - | - | - | seq2seq.pte: does not open |"


def test_failures_beside_the_methods_come_last():
    """As those of gates, which whoever validates a package may add to the record."""
    lines = markdown(validation(method("encode"), failures=["too large"])).splitlines()
    assert lines[0] == "# seq2seq.pte: FAILED, 1 failure"
    assert lines[-1] == "| - | - | - | too large |"


def test_a_method_that_never_ran_has_no_figures():
    text = markdown(validation(method("encode", ok=False, runs=[])))
    assert "| `encode` | program | 0 | - | - | - | - | - | - | - | FAILED |" in text


def test_of_many_lines_the_first_are_told():
    manifest = {"delegation": {"encode": dict(MANIFEST["delegation"]["encode"])}}
    manifest["delegation"]["encode"]["left"] = [
        left("aten.mul.Tensor", f"x * {n}", f"layers.{n}") for n in range(12)
    ]
    (row,) = (line for line in markdown(PASSED, manifest).splitlines() if "aten.mul" in line)
    assert row.startswith("| `encode` | `aten.mul.Tensor` | 12 | - | `x * 0 #")
    assert row.endswith("and 9 more | `layers.0`; `layers.1`; `layers.2`; and 9 more |")


def test_running_times_leave_no_trace():
    """But for the latency, which is measured on purpose (tests/test_latency.py)."""
    other = PASSED | {"seconds": {"encode": 9.25}}
    assert markdown(other) == markdown(PASSED)


def test_every_row_has_as_many_cells_as_its_head():
    for line in markdown(FAILED, MANIFEST).splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") in (4, 5, 6, 7, 12)


def test_a_report_needs_no_torch():
    code = (
        "import json, sys; from pipeline.report.markdown import markdown; "
        "markdown(json.load(sys.stdin)); sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).resolve().parent.parent
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=root, input=json.dumps(FAILED), text=True, timeout=60
    )
    assert finished.returncode == 0
