"""Exports any `PreTrainedModel` with transformers' own exporters.

They split it for generation, patch torch and the model, and fix the graph. Each component of
`ExecutorchExporter.export_for_generation` becomes a method; the single component of
`ExecutorchExporter.export` becomes `forward`. The export stops where that exporter begins to lower;
what the lowering needs is recorded in the programs (`recorded`). Source: `transformers/exporters`
of 5.24.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.features.transformers.hugging_face import (
    HuggingFaceModel,
    Model,
    import_transformers,
)
from pipeline.features.transformers.recorded import PATCHES, write_record
from pipeline.features.transformers.revisions import find_folder
from pipeline.features.transformers.sample_inputs import make_sample_inputs
from pipeline.features.transformers.task_classes import find_auto_class
from pipeline.store.errors import SourceError

# For each method, its module and arguments.
Components: TypeAlias = "dict[str, tuple[Any, dict[str, Any]]]"

_DECODERS = ("language_model", "lm_head")
_SINGLE = "model"  # the name of the single component of `ExecutorchExporter.export`
# Arguments that the exporter sets in the model's config instead.
_FLAGS = (
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "return_loss",
)


class Exported(HuggingFaceModel):
    """A model whose methods are the components of transformers' `ExecutorchExporter`.

    A model that can generate has `prefill` and `decode`. If it takes images or sound, `prefill` is
    replaced by those of `image_encoder`, `audio_encoder`, `multi_modal_projector`, `language_model`
    and `lm_head` that it has. Any other model has `forward`. Caches are arguments and results.

    Args:
        model: a folder, a model, or, with a `revision`, the name of a hub's model that is in
            huggingface_hub's cache.
        task: a task of `transformers.pipeline`, such as `text-generation`; it selects the class
            that reads the folder.
        inputs: arguments of the model's `generate`, or of its `forward` if it can't generate, as a
            transformers processor returns them. By default they are made up, for a model of text,
            of images, of sound, or of text with one image or sound.
        max_cache_len: the number of positions of a static cache; without it, the cache is dynamic,
            as the model's own config says.
        dynamic: whether all sizes of the inputs are dynamic (`torch.export.Dim.AUTO`).
        dynamic_shapes: for each method, the `dynamic_shapes` of `torch.export.export`, by argument.
        multi_token_decode: whether `decode` takes several tokens.
        generate: whether to split the model for generation; by default if it can generate.
        revision: the commit of the folder, as `hf download` recorded it there, or of a hub's model.
        trust_remote_code: whether code in the folder may be run.
    """

    def __init__(
        self,
        model: Model,
        task: str = "",
        inputs: Mapping[str, Any] | None = None,
        *,
        max_cache_len: int | None = None,
        dynamic: bool = False,
        dynamic_shapes: Mapping[str, Mapping[str, Any]] | None = None,
        multi_token_decode: bool = False,
        generate: bool | None = None,
        revision: str = "",
        trust_remote_code: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            model = find_folder(model, revision)
        auto_class = find_auto_class(model, task)
        super().__init__(model, auto_class, dtype, trust_remote_code)
        self._inputs = inputs
        self._max_cache_len = max_cache_len
        self._dynamic, self._dynamic_shapes = dynamic, dynamic_shapes or {}
        self._multi_token_decode = multi_token_decode
        self._generate = generate

    def export_methods(self) -> dict[str, tuple[ExportedProgram, Callable[..., Any]]]:
        """Export the methods, each with its module in eager mode as the reference.

        Raises SourceError if a folder can't be read, or if no inputs can be made up.
        """
        model = self.model
        exporter = _load_exporter()
        components = self._split(model)
        unknown = [name for name in self._dynamic_shapes if name not in components]
        if unknown:
            raise SourceError(
                f"dynamic_shapes: no methods {', '.join(unknown)}; known: {', '.join(components)}"
            )
        methods = {}
        for name, (module, inputs) in components.items():
            methods[name] = self._export(exporter, name, module, inputs)
        return methods

    def _split(self, model: Any) -> Components:
        """Return the module and the arguments of each method."""
        utils = import_transformers("transformers.exporters.utils")
        inputs = dict(self._inputs or make_sample_inputs(model))
        generates = self._generate
        if generates is None:
            generates = model.can_generate()
        if not generates:
            return {"forward": (model, inputs)}
        with _capturing_encoders(utils, model) as encoders:
            components = utils.decompose_for_generation(
                model,
                inputs,
                generation_config=self._generation_config,
                multi_token_decode=self._multi_token_decode,
            )
        return encoders | components

    @cached_property
    def _generation_config(self) -> Any:
        """The generation settings for capturing arguments; None if the model has no settings."""
        # A copy, since a model in memory is the user's.
        config = copy.deepcopy(getattr(self.model, "generation_config", None))
        if config is None:
            return None
        # Arguments are captured during generation, which must take the same path each time.
        config.do_sample = False
        if self._max_cache_len:
            config.cache_implementation = "static"
            config.max_cache_len = self._max_cache_len
        return config

    def _export(
        self, exporter: Any, method: str, module: Any, inputs: dict[str, Any]
    ) -> tuple[ExportedProgram, Callable[..., Any]]:
        """Export one component as `ExecutorchExporter.export_program` does before it lowers."""
        backend = import_transformers("transformers.exporters.exporter_executorch")
        dynamo = import_transformers("transformers.exporters.exporter_dynamo")
        utils = import_transformers("transformers.exporters.utils")
        # Read them now: the exporter moves them from the arguments into the model's config.
        flags = {name: inputs[name] for name in _FLAGS if name in inputs}
        module, inputs, _ = backend.prepare_for_xnnpack(module, inputs)
        config = exporter.config_class(
            dynamic=self._dynamic, dynamic_shapes=self._dynamic_shapes.get(method)
        )
        with ExitStack() as stack:
            for name in PATCHES:
                stack.enter_context(utils.apply_patches(name))
            program, metadata = dynamo.DynamoExporter.export_program(
                exporter, module, inputs, config=config
            )
            utils.apply_fx_program_fixes("executorch", program)
            utils.apply_fx_node_fixes("executorch", program.graph_module)
        metadata.export_config = json.loads(config.to_json_string())
        record = {
            "version": import_transformers().__version__,
            "patches": list(PATCHES),
            "component": _SINGLE if method == "forward" else method,
            "metadata": vars(metadata),
            "config": _describe_config(getattr(self.model, "config", None)),
            "generation_config": _describe_config(self._generation_config),
        }
        write_record(program.graph_module.meta, record)
        return program, _make_reference(module, program, flags)


@contextmanager
def _capturing_encoders(utils: Any, model: Any) -> Iterator[Components]:
    """Yield a mapping that receives the encoders and projectors that the context called.

    It is filled when the context ends. `generate` of transformers 5.24 calls the encoders of images
    before it calls the model, so `decompose_for_generation` doesn't see them; this can go when it
    does.
    """
    encoders: Components = {}
    if not utils.is_multimodal(model):
        yield encoders
        return
    modules = utils._find_multimodal_submodules(model)
    with ExitStack() as stack:
        calls = {
            name: stack.enter_context(utils._capture_forward(module))
            for name, module in modules.items()
            if name not in _DECODERS
        }
        yield encoders
    encoders.update(
        (name, (modules[name], calls[name][0])) for name in calls if calls[name]
    )


def _describe_config(config: Any) -> dict[str, Any] | None:
    """Return a config of transformers as its file contains it."""
    if config is None:
        return None
    described: dict[str, Any] = json.loads(config.to_json_string())
    return described


def _load_exporter() -> Any:
    """Return transformers' exporter for ExecuTorch. Raises SourceError if it has none."""
    import_transformers()
    try:
        module = import_transformers("transformers.exporters.exporter_executorch")
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("transformers"):
            # A library that transformers imports is missing, not its exporters.
            raise
        raise SourceError(
            "transformers has no exporters; `pip install 'transformers>=5.24'` installs them"
        ) from error
    return module.ExecutorchExporter()


def _make_reference(
    module: Any, program: ExportedProgram, flags: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function that calls a component in eager mode, with plain containers for caches."""
    in_spec = program.call_spec.in_spec
    assert in_spec is not None
    names = in_spec.children()[1].context

    def call(**arguments: Tensor) -> Any:
        # Keywords may come in another order than in the export.
        ordered = {name: arguments[name] for name in names}
        leaves = pytree.tree_leaves(((), ordered))
        _, rebuilt = pytree.tree_unflatten(leaves, in_spec)
        return module(**rebuilt, **flags)

    return call
