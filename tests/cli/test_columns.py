from pipeline.cli.columns import columns

ROWS = [("name", "size", ""), ("a", "1", "x"), ("longer", "10", "")]


def test_columns_are_as_wide_as_their_widest_cells():
    assert list(columns(ROWS)) == ["name    size", "a       1     x", "longer  10"]


def test_figures_stand_to_the_right_below_a_rule():
    assert list(columns(ROWS, right=(1,), rule=True)) == [
        "name    size",
        "------  ----  -",
        "a          1  x",
        "longer    10",
    ]


def test_no_rows_are_no_lines():
    assert list(columns([])) == []
