"""The options of quantizers: shared ones, and those that can differ by module and operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from typing_extensions import TypeAliasType

from pipeline.backends.options import ModuleName, Options, rule
from pipeline.backends.workspace_files import GENERATED, CalibrationFiles
from pipeline.program.module_paths import enclosing_modules
from pipeline.program.operators import base_name

if TYPE_CHECKING:
    from torch.fx import Node
    from torchao.quantization.pt2e.quantizer import Quantizer

NOT = "none"  # in place of options: leave a module or an operator unquantized


def _static(value: Any) -> Any:
    if value is not False:
        raise rule("must be false: this quantizer doesn't support dynamic quantization")
    return value


# The type of `dynamic` for a quantizer without dynamic quantization.
Static = Annotated[
    Literal[False],
    BeforeValidator(_static),
    Field(
        description="Must be false: this quantizer doesn't support dynamic quantization."
    ),
]
_Name = TypeVar("_Name")
_Scheme = TypeVar("_Scheme")
OVERRIDES = ("modules", "operators")
# Of the members of unions. They stand in pydantic's paths to mistakes, but not in the file.
UNION_TAGS = ("[one]", "[mapping]")


def _kind(override: Any) -> str | None:
    """Return the tag of an override, or None if it is invalid, as an empty mapping is."""
    if override == NOT:
        return UNION_TAGS[0]
    return UNION_TAGS[1] if override and isinstance(override, Options | dict) else None


Override = TypeAliasType(
    "Override",
    Annotated[
        Annotated[_Scheme, Tag(UNION_TAGS[1])]
        | Annotated[Literal["none"], Tag(UNION_TAGS[0])],
        Discriminator(
            _kind,
            custom_error_type="rule",
            custom_error_message=f"must be a mapping of options, or {NOT}",
        ),
    ],
    type_params=(_Scheme,),
)


def _must_be_none(override: Any) -> Any:
    if override != NOT:
        raise rule(f"must be {NOT}")
    return override


LeftAlone = Annotated[Literal["none"], BeforeValidator(_must_be_none)]
ByModule = Annotated[
    dict[ModuleName, Override[_Scheme]],
    Field(
        description=(
            "Different options for the operators of a module, by its qualified name, or `none` to "
            "leave them unquantized. The innermost module takes precedence."
        )
    ),
]
OF_OPERATORS = (
    "Different options for a kind of operator, or `none` to leave it unquantized. `modules` takes "
    "precedence."
)
ByOperator = Annotated[dict[_Name, Override[_Scheme]], Field(description=OF_OPERATORS)]


class QuantizeConfig(Options):
    """The options that all quantizers share; each quantizer adds its own.

    `partitioners_own` names options that the partitioner of the same name also has. Both must have
    the same values, since they describe one device.
    """

    partitioners_own: ClassVar[tuple[str, ...]] = ()

    quantizer: str
    """The quantizer that annotates the method."""
    dynamic: bool = False
    """Quantize activations dynamically. If false, calibration inputs determine their ranges."""
    # Keys hold what is observed anyway: the content of these files, or the model's inputs.
    calibration: CalibrationFiles | None = Field(None, exclude=True)
    """Files in the workspace with calibration inputs, which replace the model's own. A .npz or
    .safetensors file contains a tensor for each of the method's arguments, under the argument's
    name: the argument's values in all inputs, stacked along a new first dimension. A .pt file
    contains a list of argument tuples, or of dicts keyed by argument name. `generated` calibrates
    on random inputs, whose ranges differ from those of real data."""
    batches: int | None = Field(None, ge=1)
    """The maximum number of calibration inputs to observe; by default all, or 8 if they are
    generated."""

    @model_validator(mode="after")
    def _reads_what_it_is_given(self) -> Self:
        if not self.calibrates and (
            self.calibration is not None or self.batches is not None
        ):
            name = "calibration" if self.calibration is not None else "batches"
            raise rule(f"must not contain `{name}`, since it observes no inputs")
        if GENERATED in (self.calibration or ()) and not self.generates_calibration:
            raise rule(
                f"must not contain `calibration` with files and {GENERATED}; name one of them"
            )
        return self

    def schemes(self) -> list[Any]:
        """Return the distinct schemes that are used, starting with the method's."""
        return [self]

    def observes(self, scheme: Any) -> bool:
        """Return whether a scheme observes calibration inputs."""
        return not getattr(scheme, "dynamic", self.dynamic)

    def explain_float(self, operator: str, shape: Sequence[int]) -> str:
        """Explain why the shape of an operator's weight, as of linear, prevents quantization.

        Returns "" if the shape isn't the reason.
        """
        return ""

    @property
    def calibrates(self) -> bool:
        """Return whether the quantizer observes calibration inputs."""
        return any(self.observes(scheme) for scheme in self.schemes())

    @property
    def generates_calibration(self) -> bool:
        """Return whether the quantizer observes generated inputs."""
        return self.calibration == (GENERATED,)

    @property
    def depends_on_host(self) -> bool:
        """Whether the quantizer's result can depend on this machine's instruction sets.

        Everything that is observed in eager mode does.
        """
        return self.calibrates


class MixedQuantize(QuantizeConfig):
    """A quantizer whose options can differ by module and by operator.

    A subclass declares `modules` and `operators`, which map names to overrides: to options of its
    `scheme`, or to "none". Options that an override leaves out come from the method. If `scheme`
    has no options, an override can only be "none".

    `fused` names operators that are quantized together with the operator that they follow, if it is
    one of `fusing`.
    """

    scheme: ClassVar[type[Options]]
    fused: ClassVar[frozenset[str]] = frozenset()
    fusing: ClassVar[frozenset[str]] = frozenset()

    def global_scheme(self) -> Any:
        names = type(self).scheme.model_fields
        return self.scheme.model_construct(
            **{name: getattr(self, name) for name in names}
        )

    def overrides(self, kind: str) -> dict[str, Any]:
        """Return the complete schemes of `modules` or `operators` by name; None for "none"."""
        schemes = {}
        for name, override in getattr(self, kind).items():
            schemes[name] = None if override == NOT else self._completed(override)
        return schemes

    def _completed(self, override: Any) -> Any:
        # Options that are not set come from the method, not from the defaults.
        set_options = {
            name: getattr(override, name) for name in override.model_fields_set
        }
        return self.global_scheme().model_copy(update=set_options)

    def schemes(self) -> list[Any]:
        schemes = [self.global_scheme()]
        for kind in OVERRIDES:
            for scheme in self.overrides(kind).values():
                if scheme is not None and scheme not in schemes:
                    schemes.append(scheme)
        return schemes

    @property
    def mixed(self) -> bool:
        """Whether any module or operator has different options."""
        return any(getattr(self, kind) for kind in OVERRIDES)

    def resolved(self) -> dict[str, Any]:
        values = super().resolved()
        for kind in OVERRIDES:
            values[kind] = {
                name: NOT if scheme is None else scheme.resolved()
                for name, scheme in sorted(self.overrides(kind).items())
            }
        return values

    def compose(self, make: Callable[[Any], Quantizer]) -> Quantizer:
        """Return a quantizer that annotates each node according to its scheme.

        A filter is exact. Upstream's `set_module_name` is not: it doesn't accept "none", sees
        parameters as outside any module, and lets an outer module or the method take what a
        module's options don't cover.

        Args:
            make: makes a quantizer for one scheme, which has `set_filter_function`.
        """
        if not self.mixed:
            return make(self.global_scheme())
        from torchao.quantization.pt2e.quantizer import ComposableQuantizer

        quantizers = []
        for scheme in self.schemes():
            quantizer = make(scheme)
            quantizer.set_filter_function(self.filter_of(scheme))  # type: ignore[attr-defined]
            quantizers.append(quantizer)
        return ComposableQuantizer(quantizers)

    def scheme_of(self, node: Node) -> Any:
        """Return the scheme of a node, or None if it isn't quantized.

        This is the scheme of the innermost module with an override, else of its operator, else of
        the method. An operator that is fused into the one it follows has the same scheme.
        """
        leader = node
        while base_name(leader) in self.fused and hasattr(leader.args[0], "args"):
            leader = leader.args[0]
        leader = leader if base_name(leader) in self.fusing else node
        modules = self.overrides("modules")
        for name in reversed(enclosing_modules(leader)):
            if name in modules:
                return modules[name]
        return self.overrides("operators").get(base_name(leader), self.global_scheme())

    def filter_of(self, scheme: Any) -> Callable[[Node], bool]:
        """Return a filter for a scheme's nodes; nodes that aren't calls belong to all schemes."""
        return lambda node: node.op != "call_function" or self.scheme_of(node) == scheme
