"""Imports torchvision as the gallery does, with a torch that it wasn't built for."""

import pytest

from tests.support.bench import REPOSITORY


def import_torchvision():
    """Import torchvision before transformers, in this process and so in the forks that build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY / "examples" / "models")
        import _torchvision  # noqa: F401
