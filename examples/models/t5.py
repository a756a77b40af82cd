"""T5 of transformers, with random weights: `encoder` and `text_decoder`."""

import _torchvision  # noqa: F401
import torch
from transformers import T5Config, T5ForConditionalGeneration

from pipeline.program.hugging_face import Seq2SeqLM

torch.manual_seed(0)
config = T5Config(
    vocab_size=256, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0
)
model = Seq2SeqLM(T5ForConditionalGeneration(config), max_seq_len=32, max_source_len=48)
export_methods, example_inputs = model.export_methods, model.example_inputs
constant_methods = model.constant_methods
