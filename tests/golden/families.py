"""Tiny models of the families other than Llama, Mistral and Qwen; tiny_models.py writes them."""
import math


class U16(int):
    """An integer that GGUF keeps in 16 bits."""


def rising(n, first, step):
    return [first + step * i for i in range(n)]


LONGROPE = {"type": "longrope", "rope_type": "longrope", "short_factor": rising(6, 1.0, 0.125),
            "long_factor": rising(6, 1.5, 1.25)}
GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.125, "logits_scaling": 4.0}
MINICPM = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
MROPE = {"type": "mrope", "mrope_section": [2, 3, 3]}
MROPE_MIXED = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}
CONVOLUTION = (1, 1, 1, 2, 2)  # over time, as the published files have it


def named(c, architecture, **changes):
    return dict({k: v for k, v in dict(c, architectures=[architecture]).items() if v != "absent"}, **changes)


def padded(config):
    """Some classes have a default padding token that the tiny vocabulary does not have."""
    return lambda *args, **changes: config(*args, **dict(changes, pad_token_id=0))


def folders(config):
    """In the form of tiny_models.FOLDERS."""
    config = padded(config)
    phi3 = dict(num_key_value_heads=2, partial_rotary_factor=0.75, sliding_window=None, rope_theta=10000.0)
    cohere = dict(num_key_value_heads=2, tie_word_embeddings=True, layer_norm_eps=1e-5, rope_scaling="absent")
    inner = dict(num_key_value_heads=2, sliding_window=None, head_dim=24, rope_theta=1e6)
    return {
        "phi3": ("BF16", 1, named(config("phi3", **phi3, original_max_position_embeddings=512, rope_scaling=LONGROPE),
                                  "Phi3ForCausalLM", sliding_window=40)),
        "phi3_long": ("F32", 1, named(config("phi3", **phi3, original_max_position_embeddings=48, rope_scaling=LONGROPE,
                                             max_position_embeddings=192), "Phi3ForCausalLM")),
        "llama_dynamic": ("F32", 1, config("llama", num_key_value_heads=2, max_position_embeddings=96,
                                           rope_scaling={"type": "dynamic", "factor": 2.0})),
        "granite": ("BF16", 1, config("granite", num_key_value_heads=2, tie_word_embeddings=True, embed_gain=0.03,
                                      **GRANITE)),
        "minicpm": ("F16", 1, named(config("minicpm", num_key_value_heads=2, embed_gain=0.25, **MINICPM),
                                    "MiniCPMForCausalLM")),
        "smollm3": ("BF16", 1, named(config("smollm3", num_hidden_layers=5, num_key_value_heads=2, rope_theta=2000000.0,
                                            tie_word_embeddings=True, no_rope_layers=[1, 1, 1, 0, 1],
                                            use_sliding_window=False), "SmolLM3ForCausalLM")),
        "olmo2": ("F32", 1, config("olmo2", num_key_value_heads=2, rope_theta=500000.0, attention_bias=False)),
        "olmo3": ("BF16", 1, config("olmo3", num_hidden_layers=4, num_key_value_heads=2, rope_theta=500000.0,
                                    sliding_window=24, max_position_embeddings=128, rope_scaling=YARN,
                                    layer_types=["sliding_attention"] * 3 + ["full_attention"])),
        "cohere": ("F16", 1, config("cohere", **cohere, logit_scale=0.25, use_qk_norm=False)),
        "cohere2": ("BF16", 1, config("cohere2", **cohere, num_hidden_layers=4, sliding_window=24, logit_scale=0.25,
                                      sliding_window_pattern=2, rotary_pct=1.0)),
        "llava": ("F32", 1, config("llama", num_key_value_heads=2, wrap={
            "names": "old", "other": "vision_tower.vision_model.post_layernorm.weight",
            "config": {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
                       "vision_config": {"model_type": "clip_vision_model"}}})),
        "mistral3": ("BF16", 1, config("mistral", **inner, wrap={
            "names": "new", "other": "model.multi_modal_projector.linear_1.weight",
            "config": {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                       "tie_word_embeddings": False, "vision_config": {"model_type": "pixtral"}}})),
        "qwen25_vl": ("BF16", 1, named(config("qwen2_5_vl", num_key_value_heads=2, rope_theta=1e6, rope_scaling=MROPE,
                                              vision_config={"depth": 1}, use_sliding_window=False, sliding_window=16,
                                              wrap={"names": "flat", "other": "visual.patch_embed.proj.weight",
                                                    "shape": CONVOLUTION, "config": None}), "Qwen2_5_VLForConditionalGeneration")),
        "qwen3_vl": ("BF16", 1, config("qwen3_vl_text", num_key_value_heads=2, head_dim=16, rope_theta=5e6, rope_scaling=MROPE_MIXED,
                                       wrap={"names": "new", "other": "model.visual.patch_embed.proj.weight", "shape": CONVOLUTION,
                                             "config": {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
                                                        "tie_word_embeddings": True, "vision_config": {"depth": 1}}})),
        "smolvlm": ("F32", 1, config("llama", num_key_value_heads=2, wrap={
            "names": "text_model", "other": "model.connector.modality_projection.proj.weight",
            "config": {"architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm",
                       "vision_config": {"model_type": "smolvlm_vision"}}})),
    }


def wrapped(name, names):
    if names == "old":
        return "language_model." + name
    if names == "new" and name.startswith("model."):
        return "model.language_model." + name[len("model."):]
    if names == "text_model" and name.startswith("model."):
        return "model.text_model." + name[len("model."):]
    return name


def ggufs(config):
    """In the form of tiny_models.GGUFS."""
    config = padded(config)
    wide = dict(hidden_size=64, num_key_value_heads=2)
    phi3 = config("phi3", **wide, num_hidden_layers=2, partial_rotary_factor=0.75, sliding_window=None,
                  original_max_position_embeddings=48, max_position_embeddings=192, rope_scaling=LONGROPE)
    return {
        "gguf_phi3": ("F16", "phi3", phi3),
        "gguf_granite": ("Q8_0", "granite", config("granite", **wide, num_hidden_layers=2, embed_gain=0.03, **GRANITE)),
        "gguf_minicpm": ("F16", "minicpm", config("minicpm", **wide, num_hidden_layers=2, embed_gain=0.25, **MINICPM)),
        "gguf_smollm3": ("Q8_0", "smollm3", config("smollm3", **wide, num_hidden_layers=4, tie_word_embeddings=True)),
        "gguf_olmo2": ("F16", "olmo2", config("olmo2", **wide, num_hidden_layers=2, rope_theta=500000.0)),
        "gguf_command_r": ("F16", "command-r", config("cohere", **wide, num_hidden_layers=2, tie_word_embeddings=True,
                                                      layer_norm_eps=1e-5, logit_scale=0.25)),
        "gguf_cohere2": ("F16", "cohere2", config("cohere2", **wide, num_hidden_layers=4, tie_word_embeddings=True,
                                                  layer_norm_eps=1e-5, logit_scale=0.25, sliding_window=24)),
        "gguf_split": ("Q8_0", "llama", config("llama", **wide, num_hidden_layers=2, split=3)),
    }


def gguf_keys(arch, c):
    family, keys = c["model_type"], {}
    if family == "granite":
        keys = {"embedding_scale": c["embedding_multiplier"], "residual_scale": c["residual_multiplier"],
                "attention.scale": c["attention_multiplier"], "logit_scale": c["logits_scaling"]}
    if family == "minicpm":
        keys = {"embedding_scale": float(c["scale_emb"]), "logit_scale": c["hidden_size"] / c["dim_model_base"],
                "residual_scale": c["scale_depth"] / c["num_hidden_layers"] ** 0.5}
    if family in ("cohere", "cohere2"):
        keys = {"logit_scale": c["logit_scale"]}
    if family == "cohere2":
        keys["attention.sliding_window"] = c["sliding_window"]
    if family == "phi3":
        factor = c["max_position_embeddings"] / c["original_max_position_embeddings"]
        keys = {"rope.dimension_count": 12, "attention.sliding_window": 0,
                "rope.scaling.original_context_length": c["original_max_position_embeddings"],
                "rope.scaling.attn_factor": math.sqrt(1 + math.log(factor) / math.log(
                    c["original_max_position_embeddings"]))}
    return {arch + "." + k: v for k, v in keys.items()}
