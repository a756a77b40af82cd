"""What tests need to know of the installed release of ExecuTorch."""

import pytest

from pipeline.store.releases import installed_release

MINOR = installed_release().minor


def fixed_in(*minor):
    """Skip a test of a fault that ExecuTorch no longer has."""
    version = ".".join(map(str, minor))
    return pytest.mark.skipif(minor <= MINOR, reason=f"ExecuTorch {version} has it right")
