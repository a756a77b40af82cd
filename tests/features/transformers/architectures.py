"""Miniature transformers models with random weights, for `test_architectures.py`, whose table is in
docs/guides/transformers.md. Exporters of a workspace import a copy of it."""

import torch
import transformers as hf

from pte_pipeline.hugging_face import Exported

TEXT = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {**TEXT, **TOKENS, "num_key_value_heads": 1}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
CAUSAL = ("prefill", "decode")
FORWARD = ("forward",)


def ready(name, config, **options):
    """Return a model of a transformers class, and how to export it."""
    torch.manual_seed(0)
    model = getattr(hf, name)(config).requires_grad_(False).eval()
    return Exported(model, **options)


def causal(name, **more):
    config = getattr(hf, f"{name}Config")(**{**DECODER, **more})
    return ready(f"{name}ForCausalLM", config, max_cache_len=32)


def encoder(name, head, **more):
    return ready(f"{name}For{head}", getattr(hf, f"{name}Config")(**{**TEXT, **more}))


def images(name, head="ImageClassification", **more):
    return ready(f"{name}For{head}", getattr(hf, f"{name}Config")(**more))


def seq2seq(name, **more):
    sizes = {
        "vocab_size": 64,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 64,
        "decoder_start_token_id": 1,
        "forced_eos_token_id": None,
        "forced_bos_token_id": None,
    }
    config = getattr(hf, f"{name}Config")(**{**sizes, **TOKENS, **more})
    inputs = {"input_ids": torch.arange(3, 11)[None], "attention_mask": torch.ones(1, 8, dtype=int)}
    kind = {"Marian": "MarianMTModel"}.get(name, f"{name}ForConditionalGeneration")
    return ready(kind, config, inputs=inputs)


def prompt(images_at, token):
    """Return a prompt of 10 tokens, with an image's tokens at some positions."""
    tokens = torch.arange(3, 13)[None]
    tokens[:, list(images_at)] = token
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def llava():
    vision = hf.CLIPVisionConfig(**VISION, projection_dim=16)
    config = hf.LlavaConfig(
        vision_config=vision,
        text_config=hf.LlamaConfig(**DECODER),
        image_token_index=60,
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    return ready("LlavaForConditionalGeneration", config, max_cache_len=32)


def gemma3():
    vision = hf.SiglipVisionConfig(**VISION)
    text = hf.Gemma3TextConfig(**DECODER, head_dim=8, sliding_window=16)
    config = hf.Gemma3Config(
        vision_config=vision, text_config=text, image_token_index=60, mm_tokens_per_image=4
    )
    return ready("Gemma3ForConditionalGeneration", config, max_cache_len=32)


def qwen2_audio():
    sound = hf.Qwen2AudioEncoderConfig(
        d_model=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        num_mel_bins=16,
        max_source_positions=16,
    )
    text = hf.Qwen2Config(**DECODER)
    config = hf.Qwen2AudioConfig(audio_config=sound, text_config=text, audio_token_index=60)
    return ready("Qwen2AudioForConditionalGeneration", config, max_cache_len=32)


def smolvlm():
    return of_images_between_words("SmolVLM")


def idefics3():
    return of_images_between_words("Idefics3")


def of_images_between_words(kind):
    """SmolVLM is Idefics 3's architecture under another name."""
    config = getattr(hf, f"{kind}Config")(
        vision_config=getattr(hf, f"{kind}VisionConfig")(**VISION),
        text_config=hf.LlamaConfig(**DECODER),
        image_token_id=60,
        scale_factor=2,
        pad_token_id=0,
    )
    return ready(f"{kind}ForConditionalGeneration", config, max_cache_len=32)


def paligemma():
    vision = hf.SiglipVisionConfig(**VISION)
    text = hf.GemmaConfig(**DECODER, head_dim=8)
    config = hf.PaliGemmaConfig(
        vision_config=vision, text_config=text, image_token_index=60, projection_dim=16
    )
    return ready("PaliGemmaForConditionalGeneration", config, max_cache_len=32)


def voxtral():
    sound = hf.VoxtralEncoderConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_mel_bins=16,
        max_source_positions=16,
    )
    config = hf.VoxtralConfig(
        audio_config=sound, text_config=hf.LlamaConfig(**DECODER), audio_token_id=60
    )
    return ready("VoxtralForConditionalGeneration", config, max_cache_len=32)


def whisper():
    config = hf.WhisperConfig(
        vocab_size=64,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=16,
        max_source_positions=32,
        max_target_positions=32,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
        **TOKENS,
    )
    return ready("WhisperForConditionalGeneration", config)


def clip():
    config = hf.CLIPConfig(
        text_config={**TEXT, **TOKENS}, vision_config={**VISION}, projection_dim=16
    )
    return ready("CLIPModel", config, generate=False)


def siglip():
    config = hf.SiglipConfig(text_config={**TEXT, **TOKENS}, vision_config={**VISION})
    return ready("SiglipModel", config, generate=False)


def speech(name, head="CTC", **more):
    sizes = {
        **TEXT,
        "conv_dim": (8, 8),
        "conv_stride": (4, 4),
        "conv_kernel": (8, 4),
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
    }
    config = getattr(hf, f"{name}Config")(**{**sizes, **more})
    inputs = {"input_values": torch.rand(1, 800, generator=torch.Generator().manual_seed(0))}
    return ready(f"{name}For{head}", config, inputs=inputs)


def speech_to_text():
    config = hf.Speech2TextConfig(
        vocab_size=64,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        input_feat_per_channel=16,
        conv_channels=16,
        max_source_positions=64,
        max_target_positions=32,
        decoder_start_token_id=1,
        **TOKENS,
    )
    return ready("Speech2TextForConditionalGeneration", config)


def moonshine():
    config = hf.MoonshineConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        max_position_embeddings=64,
        decoder_start_token_id=1,
        **TOKENS,
    )
    inputs = {"input_values": torch.rand(1, 2000)}
    return ready("MoonshineForConditionalGeneration", config, inputs=inputs)


def vits():
    """Text to speech."""
    config = hf.VitsConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=9,
        prior_encoder_num_flows=1,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=1,
        upsample_initial_channel=16,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
    )
    return ready("VitsModel", config, inputs=prompt([], 60))


def speecht5():
    """Text to speech."""
    config = hf.SpeechT5Config(
        vocab_size=64,
        hidden_size=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=16,
        speech_decoder_prenet_units=16,
        speech_decoder_postnet_units=16,
        speaker_embedding_dim=8,
    )
    inputs = {
        "input_ids": torch.arange(3, 11)[None],
        "decoder_input_values": torch.rand(1, 4, 16),
        "speaker_embeddings": torch.rand(1, 8),
    }
    return ready("SpeechT5ForTextToSpeech", config, inputs=inputs, generate=False)


# Operators that aren't core ATen but have a kernel.
EXCEPTIONS = {"speecht5": ["aten.rand_like.default"]}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
MODELS = {
    # Decoders, with a static cache
    "cohere": (CAUSAL, lambda: causal("Cohere")),
    "falcon": (CAUSAL, lambda: causal("Falcon", new_decoder_architecture=True, num_kv_heads=1)),
    "gemma2": (CAUSAL, lambda: causal("Gemma2", head_dim=8, sliding_window=16)),
    "gpt_neox": (CAUSAL, lambda: causal("GPTNeoX")),
    "granite": (CAUSAL, lambda: causal("Granite")),
    "mistral": (CAUSAL, lambda: causal("Mistral", sliding_window=16)),
    "mixtral": (CAUSAL, lambda: causal("Mixtral", num_local_experts=2, num_experts_per_tok=1)),
    "olmo2": (CAUSAL, lambda: causal("Olmo2")),
    "opt": (CAUSAL, lambda: causal("OPT", ffn_dim=32, word_embed_proj_dim=16)),
    "phi3": (CAUSAL, lambda: causal("Phi3")),
    "qwen2": (CAUSAL, lambda: causal("Qwen2")),
    "smollm3": (CAUSAL, lambda: causal("SmolLM3")),
    "stablelm": (CAUSAL, lambda: causal("StableLm")),
    "mamba": (
        CAUSAL,
        lambda: ready(
            "MambaForCausalLM",
            hf.MambaConfig(
                vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1, **TOKENS
            ),
        ),
    ),
    # Encoders and decoders
    "bart": (CAUSAL, lambda: seq2seq("Bart")),
    "m2m_100": (CAUSAL, lambda: seq2seq("M2M100")),
    "marian": (CAUSAL, lambda: seq2seq("Marian")),
    "pegasus": (CAUSAL, lambda: seq2seq("Pegasus")),
    # Encoders
    "albert": (FORWARD, lambda: encoder("Albert", "MaskedLM", embedding_size=8)),
    "deberta_v2": (FORWARD, lambda: encoder("DebertaV2", "MaskedLM")),
    "electra": (FORWARD, lambda: encoder("Electra", "TokenClassification", embedding_size=8)),
    "modernbert": (FORWARD, lambda: encoder("ModernBert", "MaskedLM", **TOKENS)),
    "mpnet": (FORWARD, lambda: encoder("MPNet", "SequenceClassification")),
    # Images
    "beit": (FORWARD, lambda: images("Beit", **VISION)),
    "convnextv2": (
        FORWARD,
        lambda: images("ConvNextV2", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    ),
    "deit": (FORWARD, lambda: images("DeiT", **VISION)),
    "dinov2_with_registers": (FORWARD, lambda: images("Dinov2WithRegisters", **VISION)),
    "poolformer": (
        FORWARD,
        lambda: images(
            "PoolFormer",
            hidden_sizes=[8, 16],
            depths=[1, 1],
            num_encoder_blocks=2,
            patch_sizes=[7, 3],
            strides=[4, 2],
            padding=[2, 1],
        ),
    ),
    "regnet": (FORWARD, lambda: images("RegNet", **STAGES, groups_width=8)),
    "resnet": (FORWARD, lambda: images("ResNet", **STAGES)),
    "swinv2": (
        FORWARD,
        lambda: images(
            "Swinv2",
            image_size=16,
            patch_size=2,
            embed_dim=8,
            depths=[1, 1],
            num_heads=[1, 2],
            window_size=4,
        ),
    ),
    "yolos": (
        FORWARD,
        lambda: images("Yolos", "ObjectDetection", **{**VISION, "image_size": [16, 16]}),
    ),
    # Sound
    "hubert": (FORWARD, lambda: speech("Hubert")),
    "wavlm": (FORWARD, lambda: speech("WavLM")),
    "audio_spectrogram_transformer": (
        FORWARD,
        lambda: ready(
            "ASTForAudioClassification",
            hf.ASTConfig(
                **{**VISION, "patch_size": 4},
                num_mel_bins=16,
                max_length=16,
                time_stride=4,
                frequency_stride=4,
            ),
            inputs={"input_values": torch.rand(1, 16, 16)},
        ),
    ),
    "moonshine": (CAUSAL, moonshine),
    "speech_to_text": (CAUSAL, speech_to_text),
    "speecht5": (FORWARD, speecht5),
    "vits": (FORWARD, vits),
    # Several kinds
    "clip": (FORWARD, clip),
    "gemma3": (
        ("image_encoder", "multi_modal_projector", "language_model", "lm_head", "decode"),
        gemma3,
    ),
    "llava": (
        ("image_encoder", "multi_modal_projector", "language_model", "lm_head", "decode"),
        llava,
    ),
    "qwen2_audio": (
        ("audio_encoder", "multi_modal_projector", "language_model", "lm_head", "decode"),
        qwen2_audio,
    ),
    "idefics3": (("image_encoder", "connector", "language_model", "lm_head", "decode"), idefics3),
    "paligemma": (
        ("image_encoder", "multi_modal_projector", "language_model", "lm_head", "decode"),
        paligemma,
    ),
    "siglip": (FORWARD, siglip),
    "voxtral": (
        ("audio_encoder", "multi_modal_projector", "language_model", "lm_head", "decode"),
        voxtral,
    ),
    "whisper": (CAUSAL, whisper),
    "smolvlm": (("image_encoder", "connector", "language_model", "lm_head", "decode"), smolvlm),
}
