"""torchvision beside a torch that it was not built for, as the gallery imports it."""

import pytest

from tests.support.bench import REPOSITORY


def import_torchvision():
    """Import it before transformers does, in this process and so in the forks that build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY / "examples" / "models")
        import _torchvision  # noqa: F401
