"""What limited the duration of a run."""

from itertools import permutations

import pytest

from pipeline.features.timeline.schedule import describe_schedule
from pipeline.features.timeline.words import describe_schedule as words_of
from pipeline.features.timeline.words import read_schedule
from pipeline.report.events import Event


def action(kind, method, start, end, package="pack", model="net"):
    return Event(kind, package, method, model, "built", start=start, seconds=end - start, worker=1)


# Two workers: one exports and compiles `slow`; the other waits for the export, then compiles `fast`
# and `late`, which was ready from 10 on.
RUN = [
    action("export", None, 100, 110, package=None),
    action("compile", "slow", 110, 130),
    action("compile", "fast", 110, 115),
    action("compile", "late", 118, 119),
    action("link", None, 130, 132),
    action("validate", None, 133, 140),
]


@pytest.mark.parametrize("events", list(permutations(RUN))[::97])
def test_the_longest_chain_follows_inputs_in_whatever_order_events_come(events):
    schedule, chain = describe_schedule(events, 2)
    assert [event.title for event in chain] == [
        "export net",
        "compile pack/slow",
        "link pack",
        "validate pack",
    ]
    assert [link["seconds"] for link in schedule["chain"]] == [10, 20, 2, 7]
    assert [link["waited"] for link in schedule["chain"]] == [0, 0, 0, 1]


def test_idle_workers_are_counted_and_those_that_had_something_to_do():
    schedule, _ = describe_schedule(RUN, 2)
    assert (schedule["seconds"], schedule["workers"]) == (40, 2)
    assert schedule["idle"] == 2 * 40 - (10 + 20 + 5 + 1 + 2 + 7)
    assert schedule["idle_while_ready"] == 3 + 1  # before `late`, and before the validation


def test_a_method_waits_for_its_own_quantization_alone():
    events = [
        action("quantize", "f", 0.5, 2),
        action("quantize", "g", 0.5, 9),
        action("compile", "f", 9, 10),
        action("compile", "g+h", 10, 12),
    ]
    schedule, chain = describe_schedule(events, 2)
    assert [event.title for event in chain] == ["quantize pack/g", "compile pack/g+h"]
    assert schedule["idle_while_ready"] == 7 + 1


def test_a_package_of_what_was_in_the_store_did_not_wait_for_it():
    events = [action("compile", "f", 1, 9, package="other"), action("link", None, 8, 9)]
    assert describe_schedule(events, 2)[0]["idle_while_ready"] == 0


def test_the_words_of_a_schedule():
    schedule, _ = describe_schedule(RUN, 2)
    assert list(words_of(schedule)) == [
        "Longest chain: export net 10.0 s, compile pack/slow 20.0 s, link pack 2.0 s, "
        "validate pack 7.0 s (waited 1.0 s): 39.0 s of 40.0 s, more workers would not shorten "
        "this chain",
        "2 workers: idle for 35.0 s of 1 min 20 s (44 %), 4.0 s of it while an action was ready",
    ]
    assert read_schedule({"otherData": {"schedule": schedule}}) == schedule
    assert read_schedule(None) is None
    assert read_schedule({"otherData": {"schedule": {"chain": "none"}}}) is None


def test_a_thousand_actions_take_no_time():
    events = []
    for number in range(1000):
        package = f"p{number // 4}"
        events.append(action("compile", f"m{number}", number, number + 2, package))
    events += [action("link", None, 2000, 2001, f"p{number}") for number in range(250)]
    schedule, chain = describe_schedule(events, 2)
    assert len(chain) == 2 and schedule["seconds"] == 2001
