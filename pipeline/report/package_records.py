"""The form of a package's manifest."""

from __future__ import annotations

from typing import Any, Literal

from pipeline.store.compiled import DELEGATION, METHOD_FACTS, OPERATOR_LIBRARY, Blob
from pipeline.store.digest import Digest
from pipeline.store.forms import FileName
from pipeline.store.quantized import QUANTIZATION_FACTS

# A method's record; older versions wrote fewer facts.
_METHOD_MANIFEST = {
    **{f"{name.removesuffix('?')}?": form for name, form in METHOD_FACTS.items()},
    "program": str,
    "unit": str,
    "lowering": dict[str, Any],
    "quantized": (str, None),
    "delegation": DELEGATION,
    "quantization?": QUANTIZATION_FACTS,
}
# The manifest of a package. `share`, of its family, has patterns by file.
MANIFEST_OUTLINE = {
    "format": Literal[1],
    "package": str,
    "model": str,
    "target": (str, None),
    "action?": Digest,
    "toolchain": dict[str, str],
    "host": (dict[str, Any], None),
    "emit": dict[str, Any],
    "constant_methods": dict[str, Any],
    "metadata?": dict[str, Any],
    "family?": {"name": str, "base": (str, None), "share": dict[str, list[str]]},
    "order": list[str],
    "operators?": [OPERATOR_LIBRARY],
    "methods": {str: _METHOD_MANIFEST},
    "objects": dict[str, Any],
    "files": {FileName: Blob},
    "etrecord?": Blob,
}
