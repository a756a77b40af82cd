"""Known causes of failing exports, lowerings and loads, with a fix for each.

The fix is a config key if there is one, or else a change to the model.

A cause is recognized by the text of the error and, if errors with other causes read alike, by its
type. Anything that the machine lacks, such as disk space, comes before causes in the
model, with one exception, since such a failure says nothing about the model.
tests/features/remedies/test_remedies.py follows the advice of each remedy.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.features.remedies.causes import (
    is_of_a_file_limit,
    is_of_an_operator,
    is_of_installed,
    is_of_this_package,
)


@dataclass(frozen=True)
class Remedy:
    """The fix for errors with one cause.

    Attributes:
        name: the name of the cause.
        pattern: searched for in the text of an error. `text` may use its groups. It is compiled
            when an error is looked up, because the driver of a run with nothing to do loads this
            table.
        text: continues the sentence of the error.
        numbers: the `errno` values of errors that have this cause whatever their text.
        fits: whether an error whose text matches the pattern can have this cause.
    """

    name: str
    pattern: str
    text: str
    numbers: tuple[int, ...] = ()
    fits: Callable[[BaseException], bool] = lambda error: True


def _remedy(name: str, pattern: str, text: str, *numbers: int) -> Remedy:
    return Remedy(name, pattern, text, numbers)


# Causes in the machine: something that it lacks or forbids.
MACHINE = (
    _remedy(
        "disk",
        r"No space left on device|Disk quota exceeded|\bdisk is full",
        "free disk space (`doit cache gc` shrinks the store to its cap), or set PTE_PIPELINE_STORE "
        "or TMPDIR to move the store or temporary files to another disk",
        errno.ENOSPC,
        errno.EDQUOT,
    ),
    Remedy(
        "file size",
        r"File too large|PytorchStreamWriter failed|inline_container\.cc.*unexpected pos",
        "raise the limit on file sizes (`ulimit -f`)",
        (errno.EFBIG,),
        is_of_a_file_limit,
    ),
    _remedy(
        "memory",
        r"\bout of memory\b|\bbad_alloc\b|(?:[Cc]annot|can't) allocate memory|Unable to allocate",
        "free memory, or run fewer actions at once (`doit -n 1`)",
        errno.ENOMEM,
    ),
    _remedy(
        "open files",
        r"Too many open files",
        "raise the limit on open files (`ulimit -n`)",
        errno.EMFILE,
        errno.ENFILE,
    ),
    _remedy(
        "permission",
        r"Permission denied|Read-only file system|Operation not permitted",
        "give the user who runs the build access to the file or folder, or use another one",
        errno.EACCES,
        errno.EROFS,
        errno.EPERM,
    ),
    _remedy(
        "I/O",
        r"Input/output error",
        "check the disk; the system log has the details",
        errno.EIO,
    ),
)
# Operators that .eval() switches off: in ATen they change buffers or draw random numbers. RReLU is
# lowered to `rrelu_with_noise_functional` in either mode.
OF_TRAINING = re.compile(
    r"_?native_batch_norm_legit_functional|_?batch_norm_with_update\w*|native_dropout"
    r"|_?fused_moving_avg_obs\w*|bernoulli(?:\.p)?"
)
# The first that fits is used, so the more specific ones come first.
REMEDIES = (
    # Ahead of MACHINE, since such a kernel reports that it is out of memory.
    _remedy(
        "unsupported dtype",
        r"Unhandled dtype (?P<dtype>\w+) for (?P<kernel>[\w:.]*\w)",
        "ExecuTorch's own kernel {kernel} doesn't support {dtype}: cast in the model to a dtype "
        "that it supports, such as float32",
    ),
    *MACHINE,
    _remedy(
        "training mode",
        rf"(?:torch\._ops\.aten\.|aten::)(?:{OF_TRAINING.pattern})\b",
        "the operator is used only in training mode: call `.eval()` on the module before exporting "
        "it",
    ),
    _remedy(
        "not core ATen",
        r"Operator torch\._ops\.(?P<operator>[\w.]+) is not in Core ATen",
        "replace it with other operators; or, if a backend supports it or the app links a kernel "
        "for it, list it in the method's config, `edge: {{core_aten_ops_exceptions: "
        "[{operator}]}}`",
    ),
    _remedy(
        "complex numbers",
        r"torch\.complex\d+",
        "compute with real and imaginary parts (torch.view_as_real): ExecuTorch has few operators "
        "for complex tensors",
    ),
    _remedy(
        "mismatched dtypes",
        r"Tensor inputs with mismatched dtypes",
        "cast in the model to dtypes that the operator supports, such as float32 or int64, or, if "
        "the backend or kernel that runs it supports these, set `edge: {{check_ir_validity: "
        "false}}` in the method's config",
    ),
    _remedy(
        "data-dependent branch",
        r"Could not guard on data-dependent|Data-dependent branching|[Dd]ata-dependent (?:control"
        r"|expression|operator)|DataDependentOutput|Could not extract specialized integer",
        "use torch.where or torch.cond where Python branches on a tensor's values, and "
        "torch._check to bound a size that is computed from them",
    ),
    _remedy(
        "torch.func",
        r"storage of TensorWrapper|view functorch tensor"
        r"|'Tensor' object has no attribute 'constant'",
        "torch.export doesn't trace torch.func transforms: compute the gradient with "
        "torch.autograd.grad under torch.enable_grad(), or write it out",
    ),
    _remedy(
        "reference without gradients",
        r"does not require grad and does not have a grad_fn",
        "references and exported programs run without gradients: use torch.enable_grad() where the "
        "model computes a gradient",
    ),
    _remedy(
        "violated constraints",
        r"Constraints violated",
        "apply the fixes that torch suggests to the exporter's `dynamic_shapes`",
    ),
    _remedy(
        "unbounded size",
        r"Cannot evaluate a finite upper bound|upper bound .* (?:not|un)known",
        "give the size a maximum, since ExecuTorch plans memory for it: torch._check(size <= ...) "
        "in the model, or `max` of its torch.export.Dim",
    ),
    _remedy(
        "unknown output type",
        r"in output, which is not a known type",
        "return a tensor, or a tuple, list or dict of tensors, or register the class with "
        "torch.export.register_dataclass(Class, serialized_type_name='Class')",
    ),
    _remedy(
        "named tuple",
        r"Can't serialize TreeSpec of namedtuple class",
        "return a plain tuple, a list or a dict",
    ),
    _remedy(
        "class without a serialized name",
        r"No registered serialization name for <class '(?:.*\.)?(?P<kind>\w+)'>",
        "register the class under a name: torch.export.register_dataclass({kind}, "
        "serialized_type_name='{kind}')",
    ),
    _remedy(
        "string output",
        r"Unable to deserialize output node Argument\(as_string"
        r"|Returning .* is not yet supported in the emitter",
        "return only tensors and numbers",
    ),
    _remedy(
        "parameter changed in place",
        r"leaf Variable that requires grad is being used in an in-place|requires grad.*in-place",
        "store the value that the model changes in a buffer (register_buffer), and call "
        "`.requires_grad_(False)` on the module before exporting it",
    ),
    Remedy(
        "missing module",
        r"No module named '(?P<module>\w+)",
        "install {module} into the build environment, or put {module}.py next to this file or "
        "into the workspace folder",
        fits=lambda error: not is_of_installed(error),
    ),
    Remedy(
        "missing part of a library",
        r"No module named '(?P<module>\w+)\."
        r"|cannot import name '\w+' from '(?P<package>\w+)[\w.]*' \(.*(?:site|dist)-packages",
        "the installed {library} doesn't have it: install the release that the model needs, or "
        "import something that the installed release has",
        fits=lambda error: not is_of_this_package(error),
    ),
    _remedy(
        "numpy",
        r"\.numpy\(\) is not supported for tensor subclasses|Cannot call numpy\(\) on",
        "use torch operators instead: the export traces the method with tensors without values",
    ),
    _remedy(
        "dimension order",
        r"Failed to map a given dim_order",
        "call `.contiguous()` on the input or buffer whose dimensions are permuted, before "
        "exporting",
    ),
    _remedy(
        "quantized, not delegated",
        r"Missing out variants: \{?'?(?:quantized_decomposed|torchao)::",
        "no partitioner delegated the quantized operators: add a backend that supports them to "
        "`partitioners`, such as the quantizer's own",
    ),
    _remedy(
        "out variant",
        r"Missing out variants: \{?'?(?P<operator>[\w:.]+)",
        "register its out variant in a library that the config lists under `operators`",
    ),
    _remedy(
        "memory format of a copy",
        r"different dim orders.*in operator aten::clone\.out",
        "remove `edge: {{skip_dim_order: true}}` from the method's config, so that a copy can "
        "change the memory format",
    ),
    _remedy(
        "channels last",
        r"different dim orders|default dim order|out_dim_order\[",
        "the operator doesn't support a tensor in channels_last: call `.contiguous()` on it in the "
        "model, or, if it is a weight, `.to(memory_format=torch.contiguous_format)` on its module",
    ),
    _remedy(
        "3-D convolution",
        r"Expect input tensor to be 3-D or 4-D, but got, 5",
        "ExecuTorch's own kernels have no 3-D convolution: delegate it to a backend that has one, "
        "or sum torch.nn.functional.conv2d over the depth of the kernel",
    ),
    _remedy(
        "negative padding",
        r"Padding values must be non-negative",
        "crop with an index, such as `x[..., 1:]`, instead of negative padding",
    ),
    _remedy(
        "rejected argument",
        r"KernelCall failed at instruction [\d:]+ in operator (?P<operator>[\w:.]+): 0x12",
        "ExecuTorch's own kernel for {operator} doesn't support these arguments: delegate the "
        "operator, or compute the result with other operators",
    ),
    _remedy(
        "missing kernel",
        r"missing operator \(0x14\)",
        "delegate the operator, replace it with others, or link a kernel for it: into the app, and "
        "here through a library that the config lists under `operators`",
    ),
    _remedy(
        "Core ML state",
        r"State model is supported only >= iOS18",
        "set the partitioner's option `coreml: {{minimum_deployment_target: ios18}}`, since Core "
        "ML stores mutable buffers as states only from iOS 18 on, or `coreml: "
        "{{take_over_mutable_buffer: false}}` to keep them outside the model",
    ),
    _remedy(
        "delegated buffer returned",
        r"Constant (?P<buffer>[\w.]+) was tagged to be consumed by the buffer",
        "the delegate keeps the buffer {buffer}, and the method also returns the value that it "
        "writes there: return a copy made with `.clone()`",
    ),
    _remedy(
        "delegated buffer used elsewhere",
        r"Tried to erase Node ",
        "the delegate keeps a buffer, and the value that the method writes there is also used "
        "outside the delegate: use a copy there, made with `.clone()`",
    ),
    _remedy(
        "CUDA",
        r"not linked with support for cuda|Found no NVIDIA driver|not compiled with CUDA"
        r"|to be on the same device, but found .*\bcuda\b",
        "export on the CPU: packages are built there, regardless of the device that runs them",
    ),
    _remedy(
        "while_loop",
        r"while_loop\b.* can't be emitted",
        "unroll the loop: iterate in Python up to the maximum number of steps, and keep the values "
        "with torch.where once the condition is false; or call the method in a loop in the app",
    ),
    _remedy(
        "Core ML int8",
        r"CoreMLBackend: .*cast operation can be one of .*Provided u?int(?:8|16)",
        "set the partitioner's option `coreml: {{minimum_deployment_target: ios17}}`, since Core "
        "ML computes in int8 only from iOS 17 on",
    ),
    _remedy(
        "Core ML version",
        r"CoreMLBackend: .*(?:since|>=|target to|should be|requires|only in) ?iOS ?"
        r"(?P<version>\d+)",
        "set the partitioner's option `coreml: {{minimum_deployment_target: ios{version}}}`",
    ),
    _remedy(
        "XNNPACK int8 groups",
        r"XnnpackBackend: .*Only 4b group quantization is supported",
        "set `group_size: 0` in the method's `quantize`: XNNPACK computes with groups of weights "
        "only in 4 bits",
    ),
    Remedy(
        "operator that a backend can't compile",
        r"(?:^|: )preprocess (?P<backend>\w+): ",
        "{backend} accepted an operator that it can't compile: exclude the operator by listing the "
        "other modules under `modules` in the method's config, or with the partitioner's options "
        "(`doit backends` lists them)",
        fits=is_of_an_operator,
    ),
)
