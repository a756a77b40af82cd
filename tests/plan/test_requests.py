"""Requests: values that JSON can't express reach a worker unchanged."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.secrets import Secret
from pipeline.plan.kinds.config_data import from_json, to_json

VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
KEYS = st.text(max_size=3) | st.integers() | st.booleans()
DATA = st.recursive(
    VALUES | st.builds(Secret, st.just("LICENSE"), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(DATA)
def test_data_of_a_config_is_the_same_where_it_is_read(value):
    """Includes keys that aren't strings, as in YAML, and secrets."""
    assert from_json(json.loads(json.dumps(to_json(value)))) == value
