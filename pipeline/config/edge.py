"""The models of `edge` in a package config, and of the passes that `edge` and `emit` name."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_serializer

from pipeline.backends import Options
from pipeline.backends.options import Distinct
from pipeline.config.fields import (
    REFERENCE_PATTERN,
    NeedsFeature,
    Operator,
    check_data,
)
from pipeline.config.secrets import Secret, replace_secrets

FACTORY = "factory"  # the key around a pass that a function returns


class PassSpec(Options):
    """A pass over the graph: its import path, and the options to create it with."""

    reference: Annotated[str, Field(pattern=REFERENCE_PATTERN)]
    options: Annotated[dict[str, Any], AfterValidator(check_data)] = Field(default={})
    factory: bool = False
    """Whether the reference names a function that takes the options and returns a pass or a list of
    passes."""

    @field_serializer("options")
    def _without_secrets(self, options: dict[str, Any]) -> Any:
        return replace_secrets(options, lambda secret: f"{secret} {secret.digest}")

    def reveal(self) -> dict[str, Any]:
        """Return the options with the values of secrets, to make the pass."""
        options: dict[str, Any] = replace_secrets(self.options, attrgetter("value"))
        return options

    def hide(self, text: str) -> str:
        """Replace the values of secrets in a string by their names."""
        secrets: list[Secret] = []
        replace_secrets(self.options, secrets.append)
        for secret in secrets:
            if secret.value:
                text = text.replace(secret.value, str(secret))
        return text


# The passes of a config, in order.
Passes = Annotated[tuple[PassSpec, ...], Field(strict=False), NeedsFeature("passes")]


class EdgeConfig(Options):
    """Settings for the edge dialect (`EdgeCompileConfig`), and passes over the edge program."""

    check_ir_validity: bool = True
    """Check that the edge program contains only core ATen operators, with dtypes that they support.

    Example: false
    """
    skip_dim_order: bool = False
    """Keep operators that take a memory format, instead of replacing them with operators that take
    a dim order.

    Example: true
    """
    preserve_ops: Distinct[Operator] | None = None
    """Operators to keep instead of decomposing them, such as aten.linear.default.

    Example: [aten.linear.default]
    """
    core_aten_ops_exceptions: Distinct[Operator] | None = None
    """Operators outside core ATen that the edge program may contain.

    Example: [aten.foo.default]
    """
    keep_ranges: bool = False
    """Lower without oneDNN and NNPACK, which make torch narrow the ranges of dynamic sizes that
    pass through convolutions. The result is the same as that of ExecuTorch's
    to_edge_transform_and_lower under torch.backends.mkldnn.flags(enabled=False) and
    torch.backends.nnpack.flags(enabled=False).

    Example: true
    """
    passes: Passes = ()
    """The passes to run over the edge program, in this order. Each is written as module:name, and
    comes from passes/, ExecuTorch or an installed distribution.

    Example: ['fusions:FuseGelu']
    """
    passes_after_delegation: Passes = ()
    """The passes that `EdgeProgramManager.transform` runs over the operators that were not
    delegated, before constants are folded.

    Example: ['fusions:DropCopies']
    """
