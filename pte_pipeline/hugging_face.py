"""Model sources for transformers models: docs/guides/transformers.md."""

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline(tell=True)

from pipeline.features.transformers.exported import Exported as Exported
from pipeline.features.transformers.hugging_face import CausalLM as CausalLM
from pipeline.features.transformers.hugging_face import OneForward as OneForward
from pipeline.features.transformers.hugging_face import Seq2SeqLM as Seq2SeqLM
from pipeline.features.transformers.source_file import read_source as read_source
