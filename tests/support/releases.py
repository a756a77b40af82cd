"""Facts about the installed ExecuTorch release that tests need."""

import pytest

from pipeline.store.releases import installed_release

MINOR = installed_release().minor


def fixed_in(*minor):
    """Skip a test of a bug that ExecuTorch has fixed."""
    version = ".".join(map(str, minor))
    return pytest.mark.skipif(minor <= MINOR, reason=f"ExecuTorch {version} has it right")
