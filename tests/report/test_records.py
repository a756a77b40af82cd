"""The records of a report agree with the results that they are made of."""

import pytest

from pipeline.report import package_records
from pipeline.store import results

# Written twice: pydantic makes a schema of the former, and a run with nothing to do loads the
# latter, which must not import what pydantic needs.
PAIRS = {
    package_records.DelegationRecord: results.Delegation,
    package_records.BackendCounts: results._BackendCounts,
    package_records.BoundaryRecord: results._Boundary,
    package_records.CrossingRecord: results._Crossing,
    package_records.GraphSegmentRecord: results._Segment,
}


@pytest.mark.parametrize("shown", PAIRS, ids=lambda each: each.__name__)
def test_fields_of_results_are_those_of_the_report(shown):
    assert shown.__annotations__.keys() == PAIRS[shown].__annotations__.keys()
