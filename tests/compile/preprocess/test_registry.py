"""The registry of preprocess functions, and the cache around it."""

import subprocess
import sys
from types import MappingProxyType

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.test import backend_with_preprocess_all_demo as demo
from torch.export import export

import pipeline
from pipeline.backends import BACKENDS, Backend
from pipeline.compile.lower import lower
from pipeline.compile.preprocess import cache as preprocess
from pipeline.compile.preprocess import registry as preprocessors
from pipeline.compile.preprocess.cache import counted_preprocess
from pipeline.compile.preprocess.registry import UnknownBackendError, registered
from pipeline.features.catalogue.listing import describe_backend
from pipeline.features.to_backend import registration
from pipeline.features.to_backend.registration import (
    RegisteredTwiceError,
    is_registered,
    preprocess_function,
    register_preprocess,
    unregister_preprocess,
)
from pipeline.features.to_backend.to_backend import to_backend
from pipeline.features.to_backend.to_backend_multiple import to_backend_multiple
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from tests.support import functions
from tests.support.functions import BACKEND_ID, Linears, Two, entry, payloads

PREPROCESS, NOTHING = "tests.support.functions:preprocess", "tests.support.functions:nothing"


@pytest.fixture(autouse=True)
def registry():
    """Undo everything that a test registers."""
    functions.calls.clear()
    yield
    preprocessors.REGISTERED.clear()


@pytest.fixture
def catalogue(monkeypatch):
    """Return a function that adds entries to the catalogue."""

    def add(*entries):
        table = MappingProxyType({**BACKENDS, **{each.name: each for each in entries}})
        monkeypatch.setattr(preprocessors, "BACKENDS", table)
        monkeypatch.setattr(registration, "BACKENDS", table)

    return add


@pytest.fixture(scope="module")
def edge():
    program = export(Two().eval().requires_grad_(False), (torch.ones(2, 4),))
    return to_edge(program).exported_program()


def test_register_ask_get():
    assert not is_registered(BACKEND_ID)
    assert register_preprocess(BACKEND_ID, functions.preprocess) is functions.preprocess
    assert is_registered(BACKEND_ID)
    assert preprocess_function(BACKEND_ID) is functions.preprocess
    assert registered()[BACKEND_ID] == PREPROCESS
    unregister_preprocess(BACKEND_ID)
    assert not is_registered(BACKEND_ID)


def test_a_name_is_registered_only_once():
    register_preprocess(BACKEND_ID, functions.preprocess)
    words = f"TextBackend has a preprocess function: {PREPROCESS}; {NOTHING} can't"
    for again in (functions.nothing, functions.preprocess):
        with pytest.raises(RegisteredTwiceError) as told:
            register_preprocess(BACKEND_ID, again)
    assert preprocess_function(BACKEND_ID) is functions.preprocess
    with pytest.raises(RegisteredTwiceError, match=words):
        register_preprocess(BACKEND_ID, functions.nothing)
    assert isinstance(told.value, PipelineError)


def test_a_name_of_the_catalogue_is_taken_too(catalogue):
    catalogue(entry())
    with pytest.raises(
        RegisteredTwiceError,
        match=f"{PREPROCESS}; {NOTHING}",
    ):
        register_preprocess(BACKEND_ID, functions.nothing)


def test_an_unknown_name_is_told_with_those_that_are_known():
    with pytest.raises(UnknownBackendError) as told:
        preprocess_function("XnnpackBackedn")
    message = str(told.value)
    assert message.startswith(
        "Backend XnnpackBackedn was not found; did you mean 'XnnpackBackend'? known: "
    )
    assert "VulkanBackend" in message and isinstance(told.value, NotImplementedError)
    with pytest.raises(UnknownBackendError, match="no preprocess function was registered for X"):
        unregister_preprocess("X")


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("", len, "must be a non-empty string"),
        (3, len, "must be a non-empty string"),
        ("X", "len", "must be callable"),
    ],
)
def test_what_can_be_registered(name, function, words):
    with pytest.raises(TypeError, match=words):
        register_preprocess(name, function)


def test_classes_of_executorch_are_found():
    (details,) = (b for b in BackendDetails.__subclasses__() if b.__name__ == "XnnpackBackend")
    assert preprocess_function("XnnpackBackend") == details.preprocess
    assert registered()["XnnpackBackend"] == BACKENDS["xnnpack"].preprocessing.details
    # Not in the catalogue, but imported by this process
    first = demo.FirstBackendWithPreprocessAll
    assert is_registered(first.__name__) and preprocess_function(first.__name__) == first.preprocess


@pytest.mark.slow
def test_asking_imports_no_torch_and_getting_imports_the_backend():
    code = """
        import sys, pipeline
        assert "pipeline.backends" not in sys.modules and "pydantic" not in sys.modules
        assert {"to_backend", "register_preprocess"} <= set(dir(pipeline))
        pipeline.register_preprocess("X", lambda program, specs: None)
        assert pipeline.is_registered("X") and pipeline.is_registered("XnnpackBackend")
        assert "torch" not in sys.modules
        function = pipeline.preprocess_function("XnnpackBackend")
        assert function.__qualname__ == "XnnpackBackend.preprocess" and "torch" in sys.modules
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'to_backen'"):
        _ = pipeline.to_backen
    assert all(getattr(pipeline, name) is not None for name in pipeline.__all__)


# A function as a whole backend


EXPECTED = b"aten.addmm.default\nlevel=b'3'"
LEVEL = CompileSpec("level", b"3")


def without_permutes(payload):
    return payload.replace(b"aten.permute_copy.default\n", b"")


def test_a_function_is_all_that_lowering_needs(edge):
    register_preprocess(BACKEND_ID, functions.preprocess)
    lowered = to_backend_multiple({"run": edge}, Linears(BACKEND_ID, LEVEL))["run"]
    assert payloads(lowered) == [EXPECTED, EXPECTED]
    assert payloads(to_backend(edge, Linears(BACKEND_ID, LEVEL))) == [EXPECTED, EXPECTED]
    whole = to_backend(BACKEND_ID, edge, [LEVEL])
    assert whole.backend_id == BACKEND_ID and whole.processed_bytes.count(b"addmm") == 2
    program = export(Two().eval().requires_grad_(False), (torch.ones(2, 4),))
    manager = lower({"run": program}, {"run": [Linears()]})
    assert isinstance(manager, EdgeProgramManager)
    assert len(payloads(manager.exported_program("run"))) == 2


@pytest.mark.parametrize("by", ["partitioner", "name", "name and method"])
def test_without_a_function_lowering_tells_the_known(edge, by):
    with pytest.raises(UnknownBackendError, match=r"Backend Txt was not found; .*XnnpackBackend"):
        if by == "partitioner":
            to_backend_multiple({"run": edge}, Linears("Txt"))
        else:
            to_backend("Txt", *((edge, []) if by == "name" else ({"run": edge}, {"run": []})))


def test_what_a_function_returns_is_checked(edge):
    register_preprocess(BACKEND_ID, functions.nothing)
    words = f"TextBackend: the preprocess function {NOTHING} must return a PreprocessResult"
    with pytest.raises(PipelineError, match=f"{words}, not bytes"):
        to_backend(BACKEND_ID, edge, [])


def test_a_function_wins_over_a_class_and_it_is_said(edge, caplog):
    register_preprocess("XnnpackBackend", functions.preprocess)
    lowered = to_backend(edge, XnnpackPartitioner())
    assert b"aten" in payloads(lowered)[0]
    said = f"XnnpackBackend is preprocessed by {PREPROCESS}, not by executorch."
    assert said in caplog.text
    register_preprocess("FirstBackendWithPreprocessAll", functions.preprocess)
    assert not preprocess.sees_all_methods("FirstBackendWithPreprocessAll")


def test_a_function_of_the_catalogue_is_cached(edge, catalogue, tmp_path):
    catalogue(entry())
    store = Store(tmp_path / "store")
    cold = to_backend_multiple({"run": edge}, Linears(), store=store)["run"]
    assert len(functions.calls) == 2
    with counted_preprocess() as counts:
        warm = to_backend_multiple({"run": edge}, Linears(), store=store)["run"]
    assert len(functions.calls) == 2 and payloads(warm) == payloads(cold)
    assert (counts.hits, counts.misses, counts.uncached) == (2, 0, 0)
    to_backend_multiple({"run": edge}, Linears(BACKEND_ID, LEVEL), store=store)
    assert len(functions.calls) == 4


def test_both_ways_through_executorch_are_cached(edge, catalogue, tmp_path):
    catalogue(entry())
    store = Store(tmp_path / "store")
    for hits in (0, 3):
        with counted_preprocess() as counts:
            to_backend(edge, Linears(), store=store)
            to_backend(BACKEND_ID, edge, [], store=store)
        assert (counts.hits, counts.misses, counts.uncached) == (hits, 3 - hits, 0)


def test_another_function_in_the_catalogue_is_another_key(edge, catalogue, tmp_path):
    store = Store(tmp_path / "store")
    catalogue(entry(function=PREPROCESS))
    to_backend(edge, Linears(), store=store)
    catalogue(entry(function=NOTHING))
    with pytest.raises(PipelineError, match="must return a PreprocessResult"):
        to_backend(edge, Linears(), store=store)


def test_its_context_and_facts_of_the_catalogue_count(edge, catalogue, tmp_path):
    entered = []

    class Context:
        def __enter__(self):
            entered.append(self)

        def __exit__(self, *_):
            pass

    store = Store(tmp_path / "store")
    for version in ("1", "2", "2"):
        told = {"compiler": version}
        catalogue(entry(around=Context, facts=lambda told=told: told))
        to_backend(edge, Linears(), store=store)
    assert len(entered) == len(functions.calls) == 4


def test_a_function_that_was_registered_is_not_cached_and_it_is_said(edge, tmp_path, caplog):
    register_preprocess(BACKEND_ID, functions.preprocess)
    store = Store(tmp_path / "store")
    for _ in range(2):
        with counted_preprocess() as counts:
            to_backend_multiple({"run": edge}, Linears(), store=store)
        assert (counts.hits, counts.misses, counts.uncached) == (0, 0, 2)
    assert (
        "TextBackend was registered in this process, so its results are not cached" in caplog.text
    )


def test_a_function_that_is_not_there_is_told(edge, catalogue):
    catalogue(entry(function="tests.support.functions:no_such"))
    with pytest.raises(PipelineError, match=r"the preprocess function of text, .*:no_such, can"):
        to_backend(edge, Linears())


# The catalogue


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"function": "functions"}, "function must be `module:name`, not 'functions'"),
        ({"details": "a.b:c d"}, "details must be `module:name`"),
        ({"joint": True}, "sees one partition at a time"),
    ],
)
def test_entries_are_checked(fields, words):
    with pytest.raises(ValueError, match=words):
        entry(**fields)


def test_an_entry_with_both_says_which_is_called():
    assert entry().overridden == ""
    both = entry(details="acme.backend:TextBackend")
    assert both.overridden == (
        f"text is preprocessed by {PREPROCESS}, not by acme.backend:TextBackend"
    )


@pytest.mark.parametrize(
    "backend",
    [b for b in BACKENDS.values() if b.preprocessing.details],
    ids=lambda backend: backend.name,
)
def test_the_class_that_an_entry_names_is_the_installed_one(backend: Backend):
    if any(backend.host.missing()):
        pytest.skip(f"{backend.name} is not installed")
    preprocess_function(backend.backend_id)  # imports it
    found = {b.__name__: b for b in BackendDetails.__subclasses__()}[backend.backend_id]
    assert preprocessors.reference(found) == backend.preprocessing.details


def test_it_is_told_by_doit_backends(monkeypatch):
    def told(**fields):
        table = {"text": entry(**fields)}
        monkeypatch.setattr("pipeline.features.catalogue.listing.BACKENDS", table)
        return [" ".join(line.split()) for line in describe_backend("text")]

    assert f"preprocess: {PREPROCESS}" in told()
    both = f"preprocess: {PREPROCESS}, not acme.backend:TextBackend"
    assert both in told(details="acme.backend:TextBackend")
    assert "preprocess: acme.backend:TextBackend" in told(
        details="acme.backend:TextBackend", function=""
    )
