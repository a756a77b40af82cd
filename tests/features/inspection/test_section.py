"""The contents of a package, as its report shows them."""

import subprocess
import sys

from pipeline.features.pages.markdown import markdown
from tests.features.pages.test_markdown import PASSED, rows
from tests.support.bench import REPOSITORY


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
    named = {"name": kind, "methods": ["decode"], "backend": None}
    return {"file": file, "kind": kind, "offset": offset, "size": size, **named}


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

TEXT = markdown({**PASSED, "contents": CONTENTS})


def test_bytes_of_each_file_by_kind():
    assert "| file | program | delegates | named data | padding | all |" in TEXT
    assert rows(TEXT, "Bytes of each file") == [
        ["`a.pte`", "1,000", "976", "0", "24", "2,000"],
        ["`w.ptd`", "400", "0", "1,600", "0", "2,000"],
    ]


def test_segments_have_the_largest_first():
    first, second, *_ = rows(TEXT, "Segments")
    assert first == ["named data", "`named_data`", "1,600", "40.0 %", "decode", "–", "400"]
    assert second[:3] == ["program", "`program`", "1,000"]


def test_what_each_method_needs():
    assert rows(TEXT, "Bytes that each method needs") == [
        [
            "`encode`",
            "2,112 (arena 1: 2,048, arena 2: 64)",
            "0",
            "976 (1 of Vulkan: 4 B, 2 of Xnnpack: 972 B)",
            "3",
        ],
        ["`decode`", "1,048,576", "1,600", "0", "12"],
    ]


def test_the_largest_tensors_and_no_more():
    table = rows(TEXT, "Largest tensors (the first 10 of 11; report.json has all)")
    assert len(table) == 10
    unnamed, first = table[:2]
    where = "a.pte: named data"
    assert unnamed == [
        *("not known (key 0123456789abcdef)", "–", "–", "1,024", "25.6 %", where, "decode")
    ]
    where = "a.pte: in a delegate, size in the program"
    assert first == [
        *("`first.weight`", "float32", "8 × 8", "512", "12.8 %", where, "encode, decode")
    ]


def test_what_is_shared_and_what_is_stored_twice():
    shared = rows(TEXT, "Shared, stored once: saves 80 B")
    assert len(shared) == 5 and shared[0] == ["`w0 float32[4]`", "16", "decode, encode"]
    title = "Stored more than once: costs 1.6 kB (the first 10 of 12; report.json has all)"
    twice = rows(TEXT, title)
    assert twice[0] == [
        "`first.weight float32[8, 8]`",
        "256",
        "3",
        "a.pte: constants (decode); delegate 0 of encode (Xnnpack)",
        "lower both to one",
    ]


def test_without_contents_there_is_nothing_of_it():
    assert markdown({**PASSED, "contents": None}) == markdown(PASSED)
    assert "Contents" not in markdown(PASSED)


def test_reading_a_package_needs_no_torch(built):
    """Tools can then list the contents of a package cheaply."""
    code = (
        "import sys; from pathlib import Path; "
        "from pipeline.features.inspection.contents import describe_contents; "
        "describe_contents({'pair.pte': Path(sys.argv[1])}); "
        "sys.exit(bool({'torch', 'executorch', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    pte = built.root / "build" / "pair" / "pair.pte"
    done = subprocess.run([sys.executable, "-c", code, str(pte)], cwd=REPOSITORY, timeout=60)
    assert done.returncode == 0
