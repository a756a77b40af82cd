"""What is in a package, as its report shows it."""

import subprocess
import sys

from conftest import REPOSITORY
from test_report import GOLDEN, MANIFEST, PASSED

from pipeline.report.markdown import markdown


def tensor(name, size, **changes):
    return {
        "name": name,
        "key": "",
        "dtype": "float32",
        "shape": [8, 8],
        "size": size,
        "file": "a.pte",
        "where": "constants",
        "methods": ["decode"],
    } | changes


def segment(kind, offset, size, file="a.pte"):
    return {"file": file, "kind": kind, "offset": offset, "size": size}


def method(instructions, delegates=(), planned=(), **sizes):
    return (
        {
            "instructions": instructions,
            "delegates": [
                {"backend": b, "index": n, "size": s} for n, (b, s) in enumerate(delegates)
            ],
            "planned_memory": [{"arena": n, "size": s} for n, s in enumerate(planned, 1)],
        }
        | {"constants": 0, "delegated": 0}
        | sizes
    )


CONTENTS = {
    "size": 4000,
    "segments": [
        segment("program", 0, 1000),
        segment("padding", 1000, 24),
        segment("delegate", 1024, 500),
        segment("delegate", 1524, 476),
        segment("program", 0, 400, "w.ptd"),
        segment("named_data", 400, 1600, "w.ptd"),
    ],
    "methods": {
        "encode": method(
            3, [("Xnnpack", 500), ("Vulkan", 4), ("Xnnpack", 472)], (2048, 64), delegated=976
        ),
        "decode": method(12, planned=(1 << 20,), constants=1600),
        "get_length": method(0),
    },
    "tensors": [
        tensor("", 1024, where="named_data", key="0123456789abcdef01", dtype="", shape=[]),
        tensor("first.weight", 512, where="delegate", methods=["encode", "decode"]),
        *(tensor(f"layer.{n}", 4, shape=[], where="mutable") for n in range(9)),
    ],
    "shared": [
        {"what": f"w{n} float32[4]", "size": 16, "methods": ["decode", "encode"]} for n in range(5)
    ],
    "twice": [
        {
            "what": "first.weight float32[8, 8]",
            "size": 256,
            "times": 3,
            "where": ["a.pte: constants (decode)", "delegate 0 of encode (Xnnpack)"],
            "advice": "lower both to one",
        },
        *(
            {
                "what": f"t{n} float32[25]",
                "size": 100,
                "times": 2,
                "where": ["x", "y"],
                "advice": "z",
            }
            for n in range(11)
        ),
    ],
}

ENDING = """
## Contents

| file | program | delegates | named data | padding | all |
| --- | ---: | ---: | ---: | ---: | ---: |
| `a.pte` | 1.0 kB | 976 B | 0 B | 24 B | 2.0 kB |
| `w.ptd` | 400 B | 0 B | 1.6 kB | 0 B | 2.0 kB |

## Methods

| method | instructions | constants | delegates | in delegates |
| --- | ---: | ---: | --- | ---: |
| `decode` | 12 | 1.6 kB | - | 0 B |
| `encode` | 3 | 0 B | 1 Vulkan (4 B), 2 Xnnpack (972 B) | 976 B |

## Shared, stored once

| shared by | size | what |
| --- | ---: | --- |
| `decode`, `encode` | 80 B | w0 float32[4], w1 float32[4], w2 float32[4] and 2 more |

## Stored more than once

| what | size | where | what can be done |
| --- | ---: | --- | --- |
| first.weight float32[8, 8] | 3 x 256 B | a.pte: constants (decode); \
delegate 0 of encode (Xnnpack) | lower both to one |
"""


def test_a_report_tells_what_is_in_the_package():
    text = markdown(PASSED, MANIFEST | {"contents": CONTENTS})
    assert text.startswith(GOLDEN)
    assert text.removeprefix(GOLDEN).startswith(ENDING)


def test_the_largest_tensors_and_no_more():
    text = markdown(PASSED, {"contents": CONTENTS})
    rows = text.split("## Largest tensors\n\n")[1].split("\n\n")[0].splitlines()
    assert len(rows) == 2 + 10
    assert rows[2] == (
        "| not known, key `0123456789abcdef` | - | - | 1.0 kB | 25.6 % | a.pte: named data | "
        "`decode` |"
    )
    assert rows[3] == (
        "| `first.weight` | float32 | 8 x 8 | 512 B | 12.8 % | "
        "a.pte: in a delegate, size in the program | `encode`, `decode` |"
    )


def test_what_is_stored_twice_is_cut_with_its_sum():
    text = markdown(PASSED, {"contents": CONTENTS})
    rows = text.split("## Stored more than once\n\n")[1].split("\n\n")[0].splitlines()
    assert len(rows) == 2 + 10 + 1
    assert rows[-1] == "| 2 more | 200 B |  |  |"


def test_planned_memory_by_arena():
    text = markdown(PASSED, {"contents": CONTENTS})
    rows = text.split("## Memory\n\n")[1].strip().splitlines()
    assert rows == [
        "| method | arena | planned | bytes |",
        "| --- | ---: | ---: | ---: |",
        "| `decode` | 1 | 1.0 MB | 1,048,576 |",
        "| `encode` | 1 | 2.0 kB | 2,048 |",
        "| `encode` | 2 | 64 B | 64 |",
    ]


def test_without_contents_there_is_nothing_of_it():
    assert markdown(PASSED, MANIFEST | {"contents": None}) == GOLDEN


def test_reading_a_package_needs_no_torch(built):
    """So that tools may ask what is in a package."""
    code = (
        "import sys; from pathlib import Path; from pipeline.compile.inspect.contents import contents_of; "
        "contents_of({'pair.pte': Path(sys.argv[1])}); "
        "sys.exit(bool({'torch', 'executorch', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    pte = built.root / "build" / "pair" / "pair.pte"
    done = subprocess.run([sys.executable, "-c", code, str(pte)], cwd=REPOSITORY, timeout=60)
    assert done.returncode == 0
