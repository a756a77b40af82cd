from importlib.machinery import SourceFileLoader

import pytest


@pytest.fixture(autouse=True)
def bytecode_is_read_as_ever(monkeypatch):
    """Restore how bytecode is read: the program changes that for its process."""
    monkeypatch.setattr(SourceFileLoader, "get_data", SourceFileLoader.get_data)
