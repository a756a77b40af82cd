"""Model sources for models of transformers: docs/guides/transformers.md."""

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline(tell=True)

from pipeline.program.hugging_face import CausalLM as CausalLM
from pipeline.program.hugging_face import OneForward as OneForward
from pipeline.program.hugging_face import Seq2SeqLM as Seq2SeqLM
