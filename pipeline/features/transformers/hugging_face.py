"""Exports models of transformers: exporters around a `from_pretrained` folder or a model in memory.

An exporter takes five lines. transformers' own modules make a model exportable
(`transformers/integrations/executorch.py`); the classes here define which methods a package has,
their sizes, example inputs, and the constant methods that ExecuTorch's runners read
(`executorch/extension/llm/runner/constants.h`). Nothing is looked up on a hub: a build reads only
local files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram, export

from pipeline.store.errors import SourceError

Model: TypeAlias = "str | Path | torch.nn.Module"
Exported = tuple[ExportedProgram, Callable[..., Any]]  # a program and its reference
Call = tuple[tuple[Any, ...], dict[str, Any]]

# The numbers of tokens with which methods are exported.
_LENGTHS = {"prefill": 5, "forward": 3, "decode": 1}
_MOST_STEPS = 4  # tokens of a sequence in the example inputs


class HuggingFaceModel:
    """A model of transformers, in evaluation mode and without gradients."""

    def __init__(
        self,
        model: Model,
        auto_class: str,
        dtype: torch.dtype,
        trust_remote_code: bool = False,
    ) -> None:
        self._model_or_folder = model
        self._auto_class = auto_class
        self._dtype = dtype
        self._trusts_code = trust_remote_code

    @cached_property
    def model(self) -> Any:
        """The model, loaded if only its folder is known. Raises SourceError."""
        if isinstance(self._model_or_folder, torch.nn.Module):
            return self._model_or_folder.requires_grad_(False).eval()
        folder = Path(self._model_or_folder)
        if not (folder / "config.json").is_file():
            raise SourceError(
                f"{folder}: no folder with a config.json; `hf download NAME --local-dir {folder}` "
                "creates one, and `revision: COMMIT` in models/<model>.yaml loads this name from a "
                "hub"
            )
        auto_class = getattr(import_transformers(), self._auto_class)
        try:
            # An explicit False also keeps transformers from prompting.
            model = auto_class.from_pretrained(
                folder,
                dtype=self._dtype,
                local_files_only=True,
                trust_remote_code=self._trusts_code,
            )
        except ValueError as error:
            if self._trusts_code or "trust_remote_code" not in str(error):
                raise
            raise SourceError(
                f"{folder}: its config.json names code of its own, which would run in the build; "
                "`Exported(..., trust_remote_code=True)`, or `trust_remote_code: true` in a YAML "
                "source, allows it"
            ) from error
        return model.requires_grad_(False).eval()


class CausalLM(HuggingFaceModel):
    """A decoder with a static key-value cache, through `TorchExportableModuleForDecoderOnlyLM`.

    Every method takes `input_ids`, int64 [1, T], and `cache_position`, int64 [T], the positions of
    these tokens; it returns their logits, [1, T, vocabulary], and writes their keys and values into
    the cache. T is 1 for `decode`, 2 to `max_seq_len - 1` for `prefill`, and 1 to `max_seq_len - 1`
    for `forward`, the only method that ExecuTorch's text runner calls, for prompts and for single
    tokens (`TextDecoderRunner` in executorch/extension/llm/runner). A package with several methods
    decides whether they share one cache (`share_mutable_buffers`).

    Args:
        model: a folder, or a model.
        max_seq_len: the number of positions in the cache.
        methods: any of `forward`, `prefill` and `decode`.
    """

    def __init__(
        self,
        model: Model,
        max_seq_len: int = 2048,
        methods: Sequence[str] = ("forward",),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(model, "AutoModelForCausalLM", dtype)
        unknown = [repr(name) for name in methods if name not in _LENGTHS]
        if unknown:
            raise SourceError(
                f"CausalLM: unknown methods {', '.join(unknown)}; known: {', '.join(_LENGTHS)}"
            )
        self._max_seq_len = max_seq_len
        self._methods = tuple(methods)

    def export_methods(self) -> dict[str, Exported]:
        """Export the methods. Raises SourceError for a model that doesn't exist."""
        executorch = import_transformers("transformers.integrations.executorch")
        config = self.model.generation_config
        config.use_cache = True
        config.cache_implementation = "static"
        config.cache_config = {"batch_size": 1, "max_cache_len": self._max_seq_len}
        module = executorch.TorchExportableModuleForDecoderOnlyLM(self.model)
        # Without it, each `no_grad` of a rotary embedding becomes a sub-graph.
        with torch.no_grad():
            return {
                name: (self._export(module, name), module.model)
                for name in self._methods
            }

    def _export(self, module: Any, method: str) -> ExportedProgram:
        (), inputs = self._call(range(_LENGTHS[method]))
        shapes = None
        if method != "decode":
            least = 2 if method == "prefill" else 1
            length = Dim("length", min=least, max=self._max_seq_len - 1)
            shapes = {"input_ids": {1: length}, "cache_position": {0: length}}
        return module.export(**inputs, dynamic_shapes=shapes, strict=True)

    def example_inputs(self, method: str) -> list[Call]:
        """Return prompts of several lengths, or, for `decode`, one sequence token by token."""
        longest = self._max_seq_len - 1
        if method == "decode":
            steps = range(min(_MOST_STEPS, longest))
            return [self._call(range(position, position + 1)) for position in steps]
        lengths = sorted({2, min(7, longest), longest})
        return [self._call(range(length)) for length in lengths]

    def _call(self, positions: range) -> Call:
        sizes = self.model.config.get_text_config()
        generator = torch.Generator().manual_seed(positions.start)
        tokens = torch.randint(
            sizes.vocab_size, (1, len(positions)), generator=generator
        )
        return (), {"input_ids": tokens, "cache_position": torch.tensor(positions)}

    def constant_methods(self) -> dict[str, Any]:
        """Return the constants that ExecuTorch's runners read from a language model."""
        return _constants(
            self.model,
            get_max_seq_len=self._max_seq_len,
            get_max_context_len=self._max_seq_len,
            use_kv_cache=True,
            use_sdpa_with_kv_cache=False,
            enable_dynamic_shape=self._methods != ("decode",),
        )


class Seq2SeqLM(HuggingFaceModel):
    """An encoder, and a decoder with a static key-value cache, through `Seq2SeqLMExportableModule`.

    `encoder` takes `input_ids`, int64 [1, S], and returns the hidden states, [1, S, width];
    `text_decoder` takes one token, int64 [1, 1], the hidden states and the token's position, int64
    [1], and returns logits, [1, 1, vocabulary].

    Args:
        model: a folder, or a model.
        max_seq_len: the number of positions in the decoder's cache.
        max_source_len: the greatest S.
    """

    def __init__(
        self,
        model: Model,
        max_seq_len: int = 1024,
        max_source_len: int = 4096,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(model, "AutoModelForSeq2SeqLM", dtype)
        self._max_seq_len, self._max_source_len = max_seq_len, max_source_len

    def export_methods(self) -> dict[str, Exported]:
        """Export `encoder` and `text_decoder`. Raises SourceError if the model doesn't exist."""
        executorch = import_transformers("transformers.integrations.executorch")
        module = executorch.Seq2SeqLMExportableModule(
            self.model,
            max_hidden_seq_length=self._max_source_len,
            max_cache_length=self._max_seq_len,
        )
        exported = module.export()
        encoder = executorch.Seq2SeqLMEncoderExportableModule(self.model.get_encoder())
        decoder = executorch.Seq2SeqLMDecoderExportableModuleWithStaticCache(
            self.model, self._max_seq_len, batch_size=1
        ).eval()

        def decode(*inputs: Tensor) -> Tensor:
            # In eager mode, the decoder keeps the keys of the first hidden states for all later
            # calls; the exported program computes them in each call.
            decoder.cache.is_updated.update(
                dict.fromkeys(decoder.cache.is_updated, False)
            )
            decoder.cache.cross_attention_cache.reset()
            logits: Tensor = decoder(*inputs)
            return logits

        return {
            "encoder": (exported.exported_encoder, encoder.eval()),
            "text_decoder": (exported.exported_decoder, decode),
        }

    def example_inputs(self, method: str) -> list[tuple[Tensor, ...]]:
        """Return sources of several lengths, or, for `text_decoder`, the tokens of one target."""
        lengths = sorted({2, min(7, self._max_source_len), self._max_source_len})
        if method == "encoder":
            return [(self._tokens(length),) for length in lengths]
        with torch.no_grad():
            hidden = self.model.get_encoder()(
                self._tokens(lengths[1])
            ).last_hidden_state
        calls = []
        for position in range(min(_MOST_STEPS, self._max_seq_len)):
            token = self._tokens(1, seed=position)
            calls.append((token, hidden, torch.tensor([position])))
        return calls

    def _tokens(self, length: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(
            self.model.config.vocab_size, (1, length), generator=generator
        )

    def constant_methods(self) -> dict[str, Any]:
        """Return the constants that ExecuTorch's runners read from an encoder-decoder model."""
        return _constants(
            self.model,
            get_max_seq_len=self._max_seq_len,
            use_kv_cache=True,
            decoder_start_token_id=self.model.config.decoder_start_token_id,
        )


class OneForward(HuggingFaceModel):
    """A model with a single method, `forward`: classifiers, detectors, encoders.

    Args:
        model: a folder, or a model.
        inputs: the model's arguments by name, with which it is exported.
        outputs: the names of the outputs that the method returns, in this order.
        auto_class: the class whose `from_pretrained` reads the folder.
        dynamic_shapes: the `dynamic_shapes` of `torch.export.export`, by argument.
    """

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, Tensor],
        outputs: Sequence[str] = ("logits",),
        auto_class: str = "AutoModel",
        dynamic_shapes: Mapping[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(model, auto_class, dtype)
        self._inputs = dict(inputs)
        self._outputs = tuple(outputs)
        self._dynamic_shapes = dynamic_shapes

    def export_methods(self) -> dict[str, Exported]:
        """Export `forward`. Raises SourceError if the model doesn't exist."""
        module = _SelectOutputs(self.model, tuple(self._inputs), self._outputs)
        shapes = None
        if self._dynamic_shapes:
            shapes = tuple(self._dynamic_shapes.get(name) for name in self._inputs)
        with torch.no_grad():
            program = export(
                module, tuple(self._inputs.values()), dynamic_shapes=shapes
            )
        return {"forward": (program, module)}


class _SelectOutputs(torch.nn.Module):
    """Returns some outputs of a model as a tuple, or a single one by itself."""

    def __init__(
        self, model: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, *values: Tensor) -> Any:
        arguments = dict(zip(self.inputs, values, strict=True))
        returned = self.model(**arguments)
        outputs = tuple(getattr(returned, name) for name in self.outputs)
        return outputs if len(outputs) > 1 else outputs[0]


def _constants(model: Any, **values: Any) -> dict[str, Any]:
    """Return the constant methods of a language model, except those whose value is None."""
    config = model.config.get_text_config()
    end_ids = model.generation_config.eos_token_id
    if isinstance(end_ids, int):
        end_ids = [end_ids]
    constants = {
        "get_bos_id": model.generation_config.bos_token_id,
        "get_eos_ids": end_ids,
        "get_vocab_size": config.vocab_size,
        "get_n_layers": getattr(config, "num_hidden_layers", None),
        "get_max_batch_size": 1,
        **values,
    }
    return {name: value for name, value in constants.items() if value is not None}


def import_transformers(module: str = "transformers") -> Any:
    """Import a module of transformers. Raises SourceError if transformers is not installed."""
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("transformers") is None:
        raise SourceError(
            "transformers is not installed; `pip install transformers` installs it"
        )
    return import_module(module)
