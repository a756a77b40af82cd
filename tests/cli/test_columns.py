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


def test_a_name_that_is_refused_widens_no_column():
    lines = list(columns([("n" * 230, "faulty", "m" * 230), ("two", "waits", "")]))
    assert lines[0].startswith("nnn") and "n...n" in lines[0] and lines[0].endswith("m" * 230)
    assert lines[1] == f"two{' ' * 37}  waits"
