"""Known causes of failing exports, lowerings and loads, and what mends each: a key of the config
where there is one, or a change of the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Remedy(NamedTuple):
    """What mends errors whose text the pattern is found in. `text` may use the pattern's groups."""

    pattern: re.Pattern[str]
    text: str


def _remedy(pattern: str, text: str) -> Remedy:
    return Remedy(re.compile(pattern), text)


# The first that fits is given, so the more special ones come first.
REMEDIES = (
    _remedy(
        r"Operator torch\._ops\.(?P<operator>[\w.]+) is not in Core ATen",
        "list what a backend takes, or the app links a kernel for, in the method's config, "
        "`edge: {{core_aten_ops_exceptions: [{operator}]}}`, or compute it by other operators",
    ),
    _remedy(
        r"torch\.complex\d+",
        "compute with real and imaginary parts (torch.view_as_real), since ExecuTorch has no "
        "operators on complex tensors",
    ),
    _remedy(
        r"Tensor inputs with mismatched dtypes",
        "cast in the model, or set `edge: {{check_ir_validity: false}}` in the method's config if "
        "what runs the operator takes them",
    ),
    _remedy(
        r"Could not guard on data-dependent|Data-dependent branching|[Dd]ata-dependent (?:control"
        r"|expression|operator)|DataDependentOutput|Could not extract specialized integer",
        "use torch.where or torch.cond where Python branches on the values of a tensor, and "
        "torch._check to bound a size that comes from one",
    ),
    _remedy(
        r"Constraints violated",
        "take the fixes that torch suggests into `dynamic_shapes` of the exporter",
    ),
    _remedy(
        r"Cannot evaluate a finite upper bound|upper bound .* (?:not|un)known",
        "give the size a maximum, since ExecuTorch plans memory for it: torch._check(size <= ...) "
        "in the model, or `max` of its torch.export.Dim",
    ),
    _remedy(
        r"in output, which is not a known type",
        "return a tensor, or a tuple, named tuple, list or dict of tensors, or register the class "
        "by torch.export.register_dataclass",
    ),
    _remedy(
        r"Unable to deserialize output node Argument\(as_string",
        "let the method return tensors and numbers, and no text",
    ),
    _remedy(
        r"leaf Variable that requires grad is being used in an in-place|requires grad.*in-place",
        "keep what it changes in a buffer (register_buffer), and call `.requires_grad_(False)` on "
        "the module before it is exported",
    ),
    _remedy(
        r"No module named '(?P<module>[\w]+)",
        "install {module} into the environment that builds, or put {module}.py beside the exporter "
        "or into the workspace's folder",
    ),
    _remedy(
        r"\.numpy\(\) is not supported for tensor subclasses|Cannot call numpy\(\) on",
        "stay in torch: an export traces the method with tensors that have no values",
    ),
    _remedy(
        r"Failed to map a given dim_order",
        "call `.contiguous()` on the tensor before, or set `edge: {{skip_dim_order: true}}` in the "
        "method's config",
    ),
    _remedy(
        r"Missing out variants: \{{?'?(?P<operator>[\w:.]+)",
        "register its out variant in the library that `operators` of the config names",
    ),
    _remedy(
        r"different dim orders.*in operator aten::clone\.out",
        "leave `edge: {{skip_dim_order: true}}` out of the method's config: without it, a copy can "
        "have another layout",
    ),
    _remedy(
        r"different dim orders|default dim order|out_dim_order\[",
        "a tensor that lies in channels_last order comes to an operator that takes no such one: "
        "call `.contiguous()` on it in the model, as `x.contiguous()` on an input; of a weight, "
        "call `.to(memory_format=torch.contiguous_format)` on its module",
    ),
    _remedy(
        r"Expect input tensor to be 3-D or 4-D, but got, 5",
        "ExecuTorch's own kernel has no convolution of volumes: delegate it to a backend that has, "
        "or sum up torch.nn.functional.conv2d over the slices of the kernel",
    ),
    _remedy(
        r"Padding values must be non-negative",
        "cut off by an index, as `x[..., 1:]`, and not by padding with less than nothing",
    ),
    _remedy(
        r"KernelCall failed at instruction [\d:]+ in operator (?P<operator>[\w:.]+): 0x12",
        "ExecuTorch's own kernel of {operator} refuses what it is given: delegate it, or compute "
        "it by other operators",
    ),
    _remedy(
        r"missing operator \(0x14\)",
        "delegate it, compute it by other operators, or link a kernel for it: into the app, and "
        "here by a library that `operators` of the config names",
    ),
    _remedy(
        r"State model is supported only >= iOS18",
        "set `minimum_deployment_target: ios18`, which Core ML needs to keep mutable buffers as "
        "states, or `take_over_mutable_buffer: false` to keep them outside of the model",
    ),
    _remedy(
        r"Constant (?P<buffer>[\w.]+) was tagged to be consumed by the buffer",
        "the delegate keeps the buffer {buffer}, and what the method writes to it is an output, "
        "too: return a copy, `.clone()`",
    ),
    _remedy(
        r"Tried to erase Node ",
        "the delegate keeps a buffer, and what the method writes to it is used outside of the "
        "delegate, too: use a copy there, `.clone()`",
    ),
    _remedy(
        r"not linked with support for cuda|Found no NVIDIA driver",
        "export on the CPU: packages are built there, whatever they run on",
    ),
    _remedy(
        r"(?:^|: )preprocess (?P<backend>\w+): ",
        "{backend} took an operator that it can't compile: keep it out by `modules` in the "
        "method's config, or by the partitioner's options (`doit backends` lists them)",
    ),
)


def add_remedy(text: str, operators: Sequence[str] = ()) -> str:
    """Return the text of an error with what mends it, where that is known; `operators` are those
    that it goes for too, beside the one that the text is about."""
    for remedy in REMEDIES:
        if found := remedy.pattern.search(text):
            named = found.groupdict()
            if "operator" in named:
                named["operator"] = ", ".join([named["operator"], *operators])
            mended = remedy.text.format(**named)
            return text if mended in text else f"{text.rstrip('.')}; {mended}"
    return text
