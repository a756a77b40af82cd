"""The fields of a baseline: the figures of a package, as JSON.

`figures.py` reads the same fields from the records of a build. Only baselines, which people may
have edited, are parsed, so that each mistake is reported with its line.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, create_model

from pipeline.backends.options import Options
from pipeline.config.fields import DIGEST_PATTERN

_Count = Annotated[int, Field(ge=0)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
_Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A stored tensor; `size` is in bytes.
_Tensor: Any = create_model(
    "_Tensor",
    __base__=Options,
    dtype=(str, ...),
    shape=(list[int], ...),
    size=(_Count, ...),
)
# Further calls of a method: the median in milliseconds with its quartiles, and `ratio`, the median
# of the package divided by that of its source in eager mode.
_Latency: Any = create_model(
    "_Latency",
    __base__=Options,
    median=(_Finite, ...),
    low=(_Finite, ...),
    high=(_Finite, ...),
    ratio=(_Ratio, ...),
)
# The figures of a method; unknown figures are None.
_Method: Any = create_model(
    "_Method",
    __base__=Options,
    nodes=(_Count, ...),
    delegated_nodes=(_Count, ...),  # on delegates, or on a backend's kernels
    operators=(_Count, ...),
    delegated_operators=(_Count, ...),
    partitions=(dict[str, _Count], {}),
    left=(dict[str, _Count], {}),  # calls left to portable kernels, by operator
    planned_memory=(_Count | None, None),  # bytes, over all arenas
    constants=(_Count | None, None),
    delegated=(_Count | None, None),  # bytes of payloads and weights of delegates
    outputs=(dict[str, str], {}),  # dtype and sizes of each, by name
    # The worst value of each output, at most `MOST_SQNR`; None if undefined.
    sqnr_db=(list[_Finite | None] | None, None),
    # Left out if all outputs are as close as float32 allows.
    max_abs=(_Finite | None, None),
    latency=(_Latency | None, None),
)
# The figures of a package, with digest and bytes of its files.
FIGURES: type[Options] = create_model(
    "_Figures",
    __base__=Options,
    digest=(_Digest, ...),
    files=(dict[str, _Digest], {}),  # by name, if growth is measured on devices
    size=(Annotated[int, Field(ge=1)], ...),
    segments=(dict[str, _Count], {}),  # bytes by kind
    processor=(str | None, None),  # that measured its latencies
    tensors=(dict[str, _Tensor], {}),
    methods=(dict[str, _Method], ...),
)
