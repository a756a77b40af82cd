"""Treemaps of the bytes of a package."""

from collections import Counter

import pytest

from pipeline.features.inspection.treemaps import draw_contents
from pipeline.report.colours import LEFT


def segment(kind, size, name="", methods=("encode",), file="m.pte"):
    return {"file": file, "kind": kind, "name": name, "size": size, "methods": list(methods)}


def tensor(name, size, dtype="float32", methods=("encode",), where="named_data"):
    place = {"file": "m.pte", "where": where, "methods": list(methods)}
    return {"name": name, "size": size, "dtype": dtype, **place}


CONTENTS = {
    "segments": [
        segment("program", 100, methods=()),
        segment("constants", 1010, methods=("decode", "encode")),
        segment("named_data", 400, "net.0.fc.weight"),
        segment("delegate", 300),
        segment("padding", 30, methods=()),
    ],
    "tensors": [
        tensor(
            "net.embedding.weight, tied.weight", 1000, "int8", ("decode", "encode"), "constants"
        ),
        tensor("net.0.fc.weight", 400),
        tensor("net.1.fc.weight", 5000, where="delegate"),  # in the payload, in another form
    ],
}
GROUPS = {
    "storage": {
        "program": 100,
        "constants": 1010,
        "named data": 400,
        "delegates": 300,
        "padding": 30,
    },
    "dtype": {"int8": 1000, "float32": 400, "no tensors": 440},
    "method": {"decode, encode": 1000, "encode": 700, "all methods": 140},
    "module": {"net.embedding": 1000, "net.0.fc": 400, "no tensors": 440},
}


def views():
    chart = draw_contents(CONTENTS)
    return {each.view: each for each in (chart, *chart.views)}


@pytest.mark.parametrize("view", GROUPS)
def test_each_view_shares_out_every_byte(view):
    chart = views()[view]
    sizes = Counter()
    for tile in chart.data["tiles"]:
        sizes[tile["group"]] += tile["size"]
    assert sizes == GROUPS[view] and sizes.total() == 1840
    assert [words.rsplit(" ", 2)[0] for words, _ in chart.legend] == [
        group for group, _ in sizes.most_common()
    ]


def test_what_is_no_tensor_has_no_colour_of_a_dtype():
    colours = dict(views()["dtype"].legend)
    assert colours["no tensors 440 B"] == LEFT
    assert len(set(colours.values())) == 3


def test_small_pieces_of_a_group_are_one_tile():
    pieces = [tensor(f"layers.{number}.bias", 1) for number in range(50)]
    large = tensor("layers.0.weight", 1_000_000)
    segments = [segment("named_data", 1_000_050)]
    chart = draw_contents({"segments": segments, "tensors": [large, *pieces]})
    tiles = chart.views[0].data["tiles"]
    assert [tile["name"] for tile in tiles] == ["layers.0.weight", "50 more"]
    assert tiles[1]["description"] == "50 more of float32: 50 B"


def test_an_empty_package_has_no_picture():
    assert draw_contents({"segments": [], "tensors": []}) is None
