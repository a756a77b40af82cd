"""The models of `validate` in a package config: limits, gates, cases, examples, timing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pipeline.backends.options import Options, distinct
from pipeline.backends.workspace_files import InputFiles
from pipeline.config.features import open_to_features
from pipeline.config.fields import (
    NEEDS_BASELINE,
    MethodName,
    NeedsFeature,
    Share,
    Size,
    Tolerance,
)

# The verdicts that can be accepted in place of passed (pipeline/report/verdicts.py).
Allowed = Literal["not-judged", "not-run"]

# Input sets generated in addition to the random ones (the feature `cases`).
Case = Literal["zeros", "large", "limits", "strided", "expanded"]
CASES: tuple[Case, ...] = ("zeros", "large", "limits", "strided", "expanded")
Cases = Annotated[tuple[Case, ...], Field(strict=False), AfterValidator(distinct)]
# The cases of quantized methods. Where their values saturate is unknown, so none gets large values.
# Values other than the examples' are only used if ranges are found at run time.
_CASES_OF_DYNAMIC: tuple[Case, ...] = ("zeros", "limits", "strided", "expanded")
_CASES_OF_STATIC: tuple[Case, ...] = ("strided",)

# The default of a tolerance if only the other one is set.
_OTHER = {"atol": 1e-4, "rtol": 1e-3}


@open_to_features("validate.methods.<method>.gates")
class MethodGates(Options):
    """Gates for each method; a gate without a limit is not checked."""

    @property
    def needs_baseline(self) -> bool:
        """Whether one of these gates compares with the baseline."""
        for name, field in type(self).model_fields.items():
            if NEEDS_BASELINE in field.metadata and getattr(self, name) is not None:
                return True
        return False


@open_to_features("validate.gates")
class Gates(MethodGates):
    """Gates for the package and each of its methods; a gate without a limit is not checked."""


class Limits(Options):
    """Limits on the difference between outputs and the source program's; all that are set must
    hold.

    Without `atol` and `rtol`, the limits depend on the program's dtypes, depth and quantization
    (pipeline/validate/default_limits.py).
    """

    atol: Tolerance | None = None
    """The absolute tolerance for an output's values; 1e-4 if only rtol is set. If neither atol nor
    rtol is set, the limits depend on the program's dtypes, depth and quantization.

    Example: 0.0001
    """
    rtol: Tolerance | None = None
    """The relative tolerance for an output's values; 1e-3 if only atol is set.

    Example: 0.001
    """
    max_mean_abs: Tolerance | None = None
    """The maximum mean absolute error of an output.

    Example: 0.001
    """
    max_p999_abs: Tolerance | None = None
    """The maximum 99.9th percentile of an output's absolute errors.

    Example: 0.01
    """
    max_relative: Tolerance | None = None
    """The maximum ratio of the sum of an output's absolute errors to the sum of the source's
    absolute values.

    Example: 0.01
    """
    min_sqnr: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The minimum signal-to-quantization-noise ratio (SQNR) of an output, in dB.

    Example: 20.0
    """
    min_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    """The minimum cosine similarity between an output and the source program's output.

    Example: 0.999
    """
    min_agreement: Share | None = None
    """For classifiers: the minimum share, from 0 to 1, of an output's rows (along its last
    dimension) whose largest value is at the same position as in the source program's output.

    Example: 0.99
    """


@open_to_features("validate.methods.<method>")
class MethodLimits(Limits):
    """Limits and settings for one method, instead of the package's."""

    # `model_construct` makes a default without building a validator, which workers don't need.
    gates: Annotated[MethodGates, NeedsFeature("gates")] = MethodGates.model_construct()
    """Gates for this method, instead of the package's."""
    reference: Limits = Limits.model_construct()
    """Limits on the difference between this method's export and its reference, instead of the
    package's."""
    random: bool | None = None
    """Set to true if this method draws random samples on purpose; replaces the package's setting.

    Example: true
    """
    # The content of these files is part of keys.
    examples: InputFiles | None = Field(default=None, exclude=True)
    """Files of input sets for the method, by their paths in the workspace, to use instead of the
    model's own examples; the formats are the same as for `quantize.calibration`.

    Example: [inputs/decode.npz]
    """
    cases: Cases | None = Field(default=None, exclude=True)
    """The cases to generate for this method, instead of the package's.

    Example: []
    """


class Latency(Options):
    """Settings for timing methods on the validating machine."""

    seconds: float = Field(default=0.3, ge=0, le=3600, allow_inf_nan=False)
    """The time in seconds to spend on each method: to load it, and to run it and its source
    program. A method that takes more than a third of it to load is timed during its validation. 0
    disables timing.

    Example: 2
    """


@open_to_features("validate")
class ValidateConfig(Limits):
    """Settings for validating the package against its source programs."""

    inputs: int = Field(default=3, ge=0, le=2**31 - 1)
    """The number of random input sets that are generated for each method.

    Example: 10
    """
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """The seed of the random generator for input sets.

    Example: 7
    """
    steps: int = Field(default=4, ge=1, le=2**31 - 1)
    """The number of consecutive calls to a method with state.

    Example: 8
    """
    # A smaller limit that passes implies that a larger one does, and failures are not kept.
    timeout: float = Field(
        default=600, gt=0, le=604800, allow_inf_nan=False, exclude=True
    )
    """The time limit in seconds, on the validating machine, for loading a method and for each of
    its calls. If loading or a call takes longer, it is stopped and the method fails.

    Example: 120
    """
    # A validation that left something out is not kept either.
    budget: float = Field(
        default=300, gt=0, le=604800, allow_inf_nan=False, exclude=True
    )
    """The time in seconds for validating the package; a quarter of it is reserved for locating
    failures. Each method is called once before any is called again; the rest of the time goes first
    to failed methods, then to the others, lowest SQNR first. The report lists everything that was
    left out. A later run with a larger budget continues where the earlier one stopped.

    Example: 60
    """
    # The inputs and calls that follow from these two are part of keys.
    cases: Cases | None = Field(default=None, exclude=True)
    """The cases that are generated in addition to `inputs`: zeros, large values, the limits of
    dynamic sizes, strided and expanded tensors. The default is all cases for a method that is not
    quantized, all except large values if it is quantized without calibration, and only strided
    tensors if it is quantized with calibration.

    Example: [zeros, limits]
    """
    sequences: (
        tuple[Annotated[tuple[MethodName, ...], Field(strict=False, min_length=1)], ...]
        | None
    ) = Field(default=None, strict=False, exclude=True)
    """Sequences of calls to methods that share state; a package is loaded once for each sequence,
    so state carries over from call to call. By default, each group of methods that share state has
    one sequence, which calls the first method once, and then each of the others `steps` times.

    Example: [[encode, decode, decode]]
    """
    reference: Limits = Limits.model_construct()
    """Limits on the difference between the exported program and its reference: `reference(method)`
    of the exporter, or recorded outputs in golden/. If PyTorch runs both the program and the
    reference, the default limit is 16 units in the last place or the effect of rounding, whichever
    is greater; for recorded outputs, it depends on the program's dtypes. These limits don't apply
    to the package, which is compared with the exported program."""
    methods: dict[MethodName, MethodLimits] = Field(default={})
    """Settings for individual methods; each replaces the package's setting of the same name."""
    random: bool = False
    """Set to true if methods draw random samples on purpose, so that each call returns different
    values. Their outputs are then judged by shapes, ranges, means and variances over repeated
    calls, not by individual values.

    Example: true
    """
    allow: Annotated[
        tuple[Allowed, ...], Field(strict=False), AfterValidator(distinct)
    ] = ()
    """Verdicts to accept in addition to passed: not-judged, not-run. With any other verdict, doit
    exits with an error status.

    Example: [not-judged, not-run]
    """
    bundle: Annotated[bool, NeedsFeature("bundles")] = False
    """Write <file>.bpte next to the package: a bundled program with the validated inputs and the
    source's outputs, for ExecuTorch's runtime on a device.

    Example: true
    """
    bundle_limit: Size = 32 * 2**20
    """The maximum size of a method's inputs and outputs in the bundled program, as a number of
    bytes or a size such as 8MB.

    Example: 8MB
    """
    gates: Annotated[Gates, NeedsFeature("gates")] = Gates.model_construct()
    latency: Annotated[Latency, NeedsFeature("latency")] = Latency()

    def select_cases(
        self, method: str, quantized: bool = False, dynamic: bool = False
    ) -> Cases:
        """Return the cases of a method: its own, else the package's, else the default.

        The default depends on whether it is quantized, and whether dynamically.
        """
        method_cases = self.methods.get(method, MethodLimits()).cases
        chosen = self.cases if method_cases is None else method_cases
        if chosen is not None:
            return tuple(case for case in CASES if case in chosen)
        if not quantized:
            return CASES
        return _CASES_OF_DYNAMIC if dynamic else _CASES_OF_STATIC

    def select_random(self, method: str) -> bool:
        """Return whether a method is declared to sample: its own setting, else the package's."""
        method_random = self.methods.get(method, MethodLimits()).random
        return self.random if method_random is None else method_random

    def select_limits(self, method: str) -> Limits:
        """Return the limits of a method, its own or the package's; both tolerances or neither."""
        return override_limits(self, self.methods.get(method, MethodLimits()))

    def find_reference_limits(self, method: str) -> list[str]:
        """Return the config paths of the limits that are set for a method's export."""
        method_limits = self.methods.get(method, MethodLimits()).reference
        paths = []
        for name in Limits.model_fields:
            if getattr(method_limits, name) is not None:
                paths.append(f"validate.methods.{method}.reference.{name}")
            elif getattr(self.reference, name) is not None:
                paths.append(f"validate.reference.{name}")
        return paths


def override_limits(limits: Limits, method_limits: Limits) -> Limits:
    """Return limits overridden by a method's, with both tolerances if one of them is set."""
    values = {}
    for name in Limits.model_fields:
        value = getattr(method_limits, name)
        values[name] = getattr(limits, name) if value is None else value
    if values["atol"] is not None or values["rtol"] is not None:
        for name, default in _OTHER.items():
            values[name] = default if values[name] is None else values[name]
    return Limits(**values)
