"""Where an exported program departs from its eager reference is found, with its line and cause."""

import pytest

from pipeline.program.inputs import InputSet
from pipeline.validate.locate.reference_departure import describe_departure
from tests.support.departures import CASES, FILE, planted_line


@pytest.mark.parametrize("name", CASES)
def test_planted(name):
    case = CASES[name]()
    sentence = describe_departure(case.program, case.reference, InputSet(case.args, case.kwargs))
    print(sentence)
    assert f"{FILE}:{planted_line(name)}:" in sentence
    assert f" in {case.module}" in sentence or not case.module
    for words in case.words:
        assert words in sentence
