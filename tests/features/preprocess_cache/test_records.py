"""Records of results: an estimate is kept with its payload, other facts aren't."""

import json
from dataclasses import replace

import pytest
from executorch.exir.backend.backend_details import PreprocessResult

from pipeline.backends import CacheScope
from pipeline.backends.estimate import Estimate
from pipeline.features.preprocess_cache.records import from_json, to_json
from pipeline.store.store import Store

ESTIMATE = Estimate("vela", 500_000_000, 8386, 7734, 54880, 4912, 0, 0, 608)
PLAIN = PreprocessResult(processed_bytes=b"payload")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.mark.parametrize("result", [PLAIN, replace(PLAIN, _delegate_info_meta=ESTIMATE)])
@pytest.mark.parametrize("scope", [CacheScope(), CacheScope(remap=lambda payload, _: payload)])
def test_a_result_is_found_as_it_was_kept(result, scope, store):
    record = json.loads(json.dumps(to_json(result, [1, 2], scope, store)))
    assert from_json(record, [3, 4], scope, store) == result


def test_a_result_without_an_estimate_is_kept_as_before(store):
    record = to_json(PLAIN, [], CacheScope(), store)
    assert set(record) == {"handles", "processed_bytes", "debug_handles", "named"}


def test_other_facts_of_a_result_are_not_kept(store):
    other = PreprocessResult(processed_bytes=b"payload", _delegate_info_meta={"tool": "vela"})
    assert to_json(other, [], CacheScope(), store) is None
