from importlib.machinery import SourceFileLoader

import pytest


@pytest.fixture(autouse=True)
def bytecode_is_read_as_ever(monkeypatch):
    """The program changes for its process what bytecode is believed."""
    monkeypatch.setattr(SourceFileLoader, "get_data", SourceFileLoader.get_data)
