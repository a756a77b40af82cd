"""T5 from transformers, with random weights: `encoder` and `text_decoder`."""

import _transformers as models

from pte_pipeline.hugging_face import Seq2SeqLM

model = Seq2SeqLM(models.t5(), max_seq_len=32, max_source_len=48)
export_methods, example_inputs = model.export_methods, model.example_inputs
constant_methods = model.constant_methods
