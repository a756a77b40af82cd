"""Known causes of failing exports, lowerings and loads, and what mends each: a key of the config
where there is one, or a change of the model.

A cause is known by the text of the error, and, where errors of other causes read alike, by its
type. What the machine lacks, such as disk space, is looked for first: whatever failed for want of
it says nothing about the model. tests/run/test_remedies.py follows the advice of each remedy.
"""

from __future__ import annotations

import errno
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.store.causes import is_full, is_of_an_operator, is_of_installed, iter_causes


@dataclass(frozen=True)
class Remedy:
    """What mends errors of one cause.

    Attributes:
        name: of the cause.
        pattern: is found in the text of such errors. `text` may use its groups.
        text: goes on from the error.
        numbers: the `errno` of errors that have this cause whatever their text.
        fits: whether an error in whose text the pattern is found can have this cause.
    """

    name: str
    pattern: re.Pattern[str]
    text: str
    numbers: tuple[int, ...] = ()
    fits: Callable[[BaseException], bool] = lambda error: True


def _remedy(name: str, pattern: str, text: str, *numbers: int) -> Remedy:
    return Remedy(name, re.compile(pattern), text, numbers)


# What the machine lacks, or does not allow.
MACHINE = (
    _remedy(
        "disk",
        r"No space left on device|Disk quota exceeded|\bdisk is full",
        "free disk space where the store, build/ and temporary files are (`doit cache gc` shrinks "
        "the store to its cap; PTE_PIPELINE_STORE and TMPDIR name other folders)",
        errno.ENOSPC,
        errno.EDQUOT,
    ),
    _remedy(
        "file size",
        r"File too large",
        "raise the limit of file sizes (`ulimit -f`)",
        errno.EFBIG,
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
        "raise the limit of open files (`ulimit -n`)",
        errno.EMFILE,
        errno.ENFILE,
    ),
    _remedy(
        "permission",
        r"Permission denied|Read-only file system|Operation not permitted",
        "give the user who builds access to it, or name another file or folder",
        errno.EACCES,
        errno.EROFS,
        errno.EPERM,
    ),
    _remedy(
        "input or output",
        r"Input/output error",
        "check the disk; the system's log names the fault",
        errno.EIO,
    ),
)
# What .eval() switches off: their ATen operators change buffers or draw random numbers.
_OF_TRAINING = re.compile(
    r"_?native_batch_norm_legit_functional|_?batch_norm_with_update\w*|rrelu_with_noise\w*"
    r"|native_dropout|_?fused_moving_avg_obs\w*"
)
# The first that fits is given, so the more special ones come first.
REMEDIES = (
    *MACHINE,
    _remedy(
        "training mode",
        rf"(?:torch\._ops\.aten\.|aten::)(?:{_OF_TRAINING.pattern})\b",
        "it computes in training mode: call `.eval()` on the module before it is exported",
    ),
    _remedy(
        "not core ATen",
        r"Operator torch\._ops\.(?P<operator>[\w.]+) is not in Core ATen",
        "compute it by other operators; or, if a backend takes it or the app links a kernel for "
        "it, list it in the method's config, `edge: {{core_aten_ops_exceptions: [{operator}]}}`",
    ),
    _remedy(
        "complex numbers",
        r"torch\.complex\d+",
        "compute with real and imaginary parts (torch.view_as_real): ExecuTorch has few operators "
        "on complex tensors",
    ),
    _remedy(
        "dtypes",
        r"Tensor inputs with mismatched dtypes",
        "cast in the model to dtypes that the operator takes, such as float32 or int64, or set "
        "`edge: {{check_ir_validity: false}}` in the method's config if what runs it takes these",
    ),
    _remedy(
        "values that decide",
        r"Could not guard on data-dependent|Data-dependent branching|[Dd]ata-dependent (?:control"
        r"|expression|operator)|DataDependentOutput|Could not extract specialized integer",
        "use torch.where or torch.cond where Python branches on the values of a tensor, and "
        "torch._check to bound a size that comes from one",
    ),
    _remedy(
        "violated constraints",
        r"Constraints violated",
        "take the fixes that torch suggests into `dynamic_shapes` of the exporter",
    ),
    _remedy(
        "no upper bound",
        r"Cannot evaluate a finite upper bound|upper bound .* (?:not|un)known",
        "give the size a maximum, since ExecuTorch plans memory for it: torch._check(size <= ...) "
        "in the model, or `max` of its torch.export.Dim",
    ),
    _remedy(
        "type of an output",
        r"in output, which is not a known type",
        "return a tensor, or a tuple, list or dict of tensors, or register the class by "
        "torch.export.register_dataclass(Class, serialized_type_name='Class')",
    ),
    _remedy(
        "named tuple",
        r"Can't serialize TreeSpec of namedtuple class",
        "return a plain tuple, a list or a dict",
    ),
    _remedy(
        "name of a class",
        r"No registered serialization name for <class '(?:.*\.)?(?P<kind>\w+)'>",
        "register it with a name, torch.export.register_dataclass({kind}, "
        "serialized_type_name='{kind}')",
    ),
    _remedy(
        "text as an output",
        r"Unable to deserialize output node Argument\(as_string"
        r"|Returning .* is not yet supported in the emitter",
        "let the method return tensors and numbers, and no text",
    ),
    _remedy(
        "gradients",
        r"leaf Variable that requires grad is being used in an in-place|requires grad.*in-place",
        "keep what it changes in a buffer (register_buffer), and call `.requires_grad_(False)` on "
        "the module before it is exported",
    ),
    Remedy(
        "module to import",
        re.compile(r"No module named '(?P<module>\w+)"),
        "install {module} into the environment that builds, or put {module}.py beside the exporter "
        "or into the workspace's folder",
        fits=lambda error: not is_of_installed(error),
    ),
    _remedy(
        "part of a library",
        r"No module named '(?P<module>\w+)\."
        r"|cannot import name '\w+' from '(?P<package>\w+)[\w.]*' \(.*(?:site|dist)-packages",
        "the {library} that is installed lacks it: install the release that the model needs, or "
        "import what this one has",
    ),
    _remedy(
        "numpy",
        r"\.numpy\(\) is not supported for tensor subclasses|Cannot call numpy\(\) on",
        "stay in torch: an export traces the method with tensors that have no values",
    ),
    _remedy(
        "dimension order",
        r"Failed to map a given dim_order",
        "call `.contiguous()` on the input or buffer whose dimensions are permuted, before the "
        "export",
    ),
    _remedy(
        "quantized, not delegated",
        r"Missing out variants: \{?'?(?:quantized_decomposed|torchao)::",
        "no partitioner took what was quantized: name a backend in `partitioners` that does, such "
        "as the quantizer's own",
    ),
    _remedy(
        "out variant",
        r"Missing out variants: \{?'?(?P<operator>[\w:.]+)",
        "register its out variant in the library that `operators` of the config names",
    ),
    _remedy(
        "layout of a copy",
        r"different dim orders.*in operator aten::clone\.out",
        "leave `edge: {{skip_dim_order: true}}` out of the method's config: without it, a copy can "
        "have another layout",
    ),
    _remedy(
        "channels last",
        r"different dim orders|default dim order|out_dim_order\[",
        "a tensor that lies in channels_last order comes to an operator that takes no such one: "
        "call `.contiguous()` on it in the model, as `x.contiguous()` on an input; of a weight, "
        "call `.to(memory_format=torch.contiguous_format)` on its module",
    ),
    _remedy(
        "convolution of volumes",
        r"Expect input tensor to be 3-D or 4-D, but got, 5",
        "ExecuTorch's own kernel has no convolution of volumes: delegate it to a backend that has, "
        "or sum up torch.nn.functional.conv2d over the slices of the kernel",
    ),
    _remedy(
        "negative padding",
        r"Padding values must be non-negative",
        "cut off by an index, as `x[..., 1:]`, and not by padding with less than nothing",
    ),
    _remedy(
        "kernel that refuses",
        r"KernelCall failed at instruction [\d:]+ in operator (?P<operator>[\w:.]+): 0x12",
        "ExecuTorch's own kernel of {operator} refuses what it is given: delegate it, or compute "
        "it by other operators",
    ),
    _remedy(
        "kernel",
        r"missing operator \(0x14\)",
        "delegate it, compute it by other operators, or link a kernel for it: into the app, and "
        "here by a library that `operators` of the config names",
    ),
    _remedy(
        "states of Core ML",
        r"State model is supported only >= iOS18",
        "set `minimum_deployment_target: ios18`, which Core ML needs to keep mutable buffers as "
        "states, or `take_over_mutable_buffer: false` to keep them outside of the model",
    ),
    _remedy(
        "buffer of a delegate",
        r"Constant (?P<buffer>[\w.]+) was tagged to be consumed by the buffer",
        "the delegate keeps the buffer {buffer}, and what the method writes to it is an output, "
        "too: return a copy, `.clone()`",
    ),
    _remedy(
        "buffer used outside",
        r"Tried to erase Node ",
        "the delegate keeps a buffer, and what the method writes to it is used outside of the "
        "delegate, too: use a copy there, `.clone()`",
    ),
    _remedy(
        "CUDA",
        r"not linked with support for cuda|Found no NVIDIA driver|not compiled with CUDA"
        r"|to be on the same device, but found .*\bcuda\b",
        "export on the CPU: packages are built there, whatever they run on",
    ),
    _remedy(
        "while_loop",
        r"while_loop\b.* can't be emitted",
        "unroll it: a Python loop over the greatest number of steps, with torch.where keeping the "
        "values once the condition is false; or let the app call the method in a loop",
    ),
    _remedy(
        "Core ML int8",
        r"CoreMLBackend: .*cast operation can be one of .*Provided u?int(?:8|16)",
        "Core ML computes with int8 from iOS 17 on: give its partitioner the option, "
        "`coreml: {{minimum_deployment_target: ios17}}`",
    ),
    _remedy(
        "Core ML version",
        r"CoreMLBackend: .*(?:since|>=|minimum_deployment_target to) ?iOS ?(?P<version>\d+)",
        "give its partitioner the option, `coreml: {{minimum_deployment_target: ios{version}}}`",
    ),
    Remedy(
        "operator of a backend",
        re.compile(r"(?:^|: )preprocess (?P<backend>\w+): "),
        "{backend} took an operator that it can't compile: keep it out, by listing in `modules` of "
        "the method's config the other modules, or by the partitioner's options (`doit backends` "
        "lists them)",
        fits=is_of_an_operator,
    ),
)


def add_remedy(text: str, operators: Sequence[str] = (), error: BaseException | None = None) -> str:
    """Return the text of an error with what mends it, where that is known.

    Args:
        operators: those that it goes for too, beside the one that the text is about.
        error: the error itself, where it is at hand.
    """
    error = error or Exception()
    for remedy in REMEDIES:
        match = remedy.pattern.search(text)
        if match is None and remedy not in _iter_machine(error):
            continue
        if not remedy.fits(error):
            continue
        advice = _fill_in(remedy, match, operators)
        return text if advice in text else f"{text.rstrip('.')}; {advice}"
    return text


def _fill_in(remedy: Remedy, match: re.Match[str] | None, operators: Sequence[str]) -> str:
    """Return the text of a remedy with the parts of the error that it names, and the advice for
    those of the further operators that need another."""
    values = match.groupdict() if match else {}
    values["library"] = values.get("module") or values.get("package") or ""
    training = [name for name in operators if _OF_TRAINING.search(name)]
    others = [name for name in operators if name not in training]
    if "operator" in values:
        values["operator"] = ", ".join([values["operator"], *others])
        more = [_by_name("training mode")] if training else []
    else:
        more = [_by_name("not core ATen")] if remedy.name == "training mode" and others else []
    filled = {"operator": ", ".join(others), **values}
    return "; ".join(each.text.format(**filled) for each in (remedy, *more))


def _by_name(name: str) -> Remedy:
    return next(remedy for remedy in REMEDIES if remedy.name == name)


def _iter_machine(error: BaseException) -> Iterator[Remedy]:
    """Yield the remedies of what the machine lacked, as the errors on the way say by their type.

    Torch raises an error of its own where it can't write an archive, and a tool that found no room
    says so only in the log.
    """
    causes = list(iter_causes(error))
    for cause in iter_causes(error, handled=True):
        if isinstance(cause, MemoryError):
            yield _by_name("memory")
        if isinstance(cause, subprocess.CalledProcessError) and is_full(tempfile.gettempdir()):
            yield _by_name("disk")
        number = cause.errno if isinstance(cause, OSError) else None
        for remedy in MACHINE if number is not None else ():
            # What else was handled on the way may have been expected.
            if number in remedy.numbers and (cause in causes or remedy.name == "disk"):
                yield remedy


def range_remedy(operator: str, lowered: Sequence[int | None], keeps: bool) -> str:
    """Return what to do about a size that is lowered for a smaller range than its source takes.

    Args:
        operator: the one that narrowed it; "" where it is not known.
        lowered: the least and the greatest size; None is no limit.
        keeps: whether `keep_ranges` is set, which helps where convolutions narrow a size.
    """
    if not keeps and (not operator or "conv" in operator):
        return "`edge: {keep_ranges: true}` may keep them"
    least, greatest = lowered
    limits = f"min={least}" if greatest is None else f"min={least}, max={greatest}"
    return f"export it with torch.export.Dim(..., {limits}), or compute that by other operators"
