"""Models that others wrote, with random weights and small sizes, and what is known of each.

Every model is made by its package and examined as a user would: `mnemoscope.examine(model, inputs)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

STEPS = 24
BATCH = 2
VOCABULARY = 32


@dataclass(frozen=True)
class Known:
    """A model and its known answers.

    Attributes:
        package: what to install.
        name: the model, with the options that matter.
        make: () -> model and inputs.
        kind: what `recurrence` must say.
        answer: what is known, in words, for the table in docs/compatibility.md.
        field: the exact receptive field, None if there is none.
        reaches_all: True if gradients reach every earlier input that was looked at, as attention makes them; False if
            the model forgets before; None if that is left to its random weights.
        rate: outputs per input, if not one for each.
    """

    package: str
    name: str
    make: Callable[[], tuple[Any, Any]]
    kind: str
    answer: str
    field: int | None = None
    reaches_all: bool | None = None
    rate: float = 1.0


def ids(steps: int = STEPS) -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, steps))


def numbers(features: int = 8, steps: int = STEPS) -> Tensor:
    return torch.randn(BATCH, steps, features)


def hugging_face(name: str, inputs: Callable[[], Tensor] = ids, **options: Any) -> Callable[[], tuple[Any, Any]]:
    """A model of the transformers library: its configuration has the same name."""

    def make() -> tuple[Any, Any]:
        transformers = importlib.import_module("transformers")
        base = name
        for ending in ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "EncoderModel", "ForPrediction"):
            base = base.removesuffix(ending)
        base = base.removesuffix("Model")
        config = getattr(transformers, f"{base}Config")(**options)
        return getattr(transformers, name)(config).eval(), inputs()

    return make


SIZES: dict[str, Any] = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2)
HEADS: dict[str, Any] = dict(num_attention_heads=2, num_key_value_heads=2, intermediate_size=32)
TOKENS: dict[str, Any] = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
LLAMA: dict[str, Any] = {**SIZES, **HEADS, **TOKENS, "max_position_embeddings": 64}

CAUSAL = "causal; reads all of the past"
STATE = "causal; a state"
BOTH = "reads the past and the future"


def decoder(name: str, answer: str = CAUSAL, **options: Any) -> Known:
    known = Known("transformers", name, hugging_face(name, **options), "recurrent", answer, reaches_all=True)
    return known if answer == CAUSAL else Known(known.package, name, known.make, "recurrent", answer)


def windowed(name: str, field: int, **options: Any) -> Known:
    answer = f"causal; receptive field {field}"
    return Known("transformers", name, hugging_face(name, **options), "recurrent", answer, field=field)


def both_ways(name: str, **options: Any) -> Known:
    return Known("transformers", name, hugging_face(name, **options), "reads the future", BOTH)


def wav2vec_encoder() -> tuple[Any, Any]:
    transformers = importlib.import_module("transformers")
    module = importlib.import_module("transformers.models.wav2vec2.modeling_wav2vec2")
    config = transformers.Wav2Vec2Config(conv_dim=(4,) * 7, feat_extract_norm="layer")
    return module.Wav2Vec2FeatureEncoder(config).eval(), torch.randn(BATCH, 2000)


def made(module: str, name: str, inputs: Callable[[], Tensor], /, *arguments: Any, **options: Any) -> Callable[[], Any]:
    def make() -> tuple[Any, Any]:
        return getattr(importlib.import_module(module), name)(*arguments, **options).eval(), inputs()

    return make


def x_transformer(kind: str) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        package = importlib.import_module("x_transformers")
        layers = getattr(package, kind)(dim=16, depth=2, heads=2, attn_dim_head=8)
        wrapper = package.TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=64, attn_layers=layers)
        return wrapper.eval(), ids()

    return make


def mamba_py(name: str, **options: Any) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        module = importlib.import_module(f"mambapy.{name.lower()}")
        config = getattr(module, f"{name}Config")(d_model=16, n_layers=2, **options)
        return getattr(module, name)(config).eval(), numbers(16)

    return make


def liquid(name: str, **options: Any) -> Callable[[], tuple[Any, Any]]:
    return made("ncps.torch", name, lambda: numbers(3), 3, 8, batch_first=True, **options)


T5: dict[str, Any] = dict(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
WAV: dict[str, Any] = dict(
    conv_dim=(8, 8), conv_kernel=(10, 4), conv_stride=(5, 2), hidden_size=16, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=32, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
)  # fmt: skip
JAMBA: dict[str, Any] = dict(num_experts=2, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False)

ZOO = [
    decoder("GPT2LMHeadModel", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64, **TOKENS),
    decoder("LlamaForCausalLM", **LLAMA),
    decoder("Qwen2ForCausalLM", **LLAMA),
    decoder("GPTNeoXForCausalLM", **LLAMA),
    decoder("OPTForCausalLM", **SIZES, **TOKENS, ffn_dim=32, num_attention_heads=2, word_embed_proj_dim=16),
    decoder("BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2, **TOKENS),
    decoder("FalconForCausalLM", **SIZES, **TOKENS, num_attention_heads=2),
    decoder("PhiForCausalLM", **LLAMA),
    decoder("JambaForCausalLM", **LLAMA, **JAMBA),
    decoder("MambaForCausalLM", STATE, **SIZES, state_size=4),
    decoder("Mamba2ForCausalLM", STATE, **SIZES, state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=8),
    decoder("FalconMambaForCausalLM", STATE, **SIZES, state_size=4),
    decoder("RwkvForCausalLM", STATE, **SIZES, attention_hidden_size=16, context_length=64),
    decoder("xLSTMForCausalLM", STATE, **SIZES, num_heads=2),
    decoder("RecurrentGemmaForCausalLM", STATE, **LLAMA, lru_width=16, attention_window_size=64),
    windowed("MistralForCausalLM", 7, **LLAMA, sliding_window=4),
    windowed("Starcoder2ForCausalLM", 7, **LLAMA, sliding_window=4),
    windowed(
        "GPTNeoForCausalLM",
        7,
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        window_size=4,
        attention_types=[[["local"], 2]],
        max_position_embeddings=64,
        **TOKENS,
    ),
    both_ways("BertModel", **SIZES, num_attention_heads=2, intermediate_size=32),
    both_ways("DistilBertModel", vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    both_ways("T5EncoderModel", **T5),
    both_ways("FNetModel", **SIZES, intermediate_size=32, tpu_short_seq_length=STEPS),
    Known(
        "transformers",
        "T5ForConditionalGeneration",
        hugging_face("T5ForConditionalGeneration", **T5),
        "recurrent",
        "one output from the whole sequence",
        reaches_all=True,
    ),
    Known(
        "transformers",
        "Wav2Vec2Model",
        hugging_face("Wav2Vec2Model", lambda: torch.randn(BATCH, 400), **WAV),
        "reads all",
        "a tenth of the steps; each reads all of the sequence",
        rate=38 / 400,
    ),
    Known(
        "transformers",
        "Wav2Vec2FeatureEncoder",
        wav2vec_encoder,
        "recurrent",
        "one output for 320 samples; receptive field 400",
        field=400,
        rate=6 / 2000,
    ),
    Known(
        "transformers",
        "PatchTSTForPrediction",
        hugging_face(
            "PatchTSTForPrediction",
            lambda: numbers(3),
            num_input_channels=3,
            context_length=STEPS,
            prediction_length=6,
            patch_length=4,
            patch_stride=4,
            d_model=8,
            num_attention_heads=2,
            num_hidden_layers=1,
            ffn_dim=16,
        ),
        "reads all",
        "six steps ahead from the whole sequence",
        reaches_all=True,
        rate=6 / STEPS,
    ),
    Known("ncps", "CfC", liquid("CfC"), "recurrent", STATE),
    Known("ncps", "CfC(mixed_memory=True)", liquid("CfC", mixed_memory=True), "recurrent", STATE),
    Known("ncps", "LTC", liquid("LTC"), "recurrent", STATE),
    Known(
        "pytorch-tcn",
        "TCN(input_shape='NCL')",
        made("pytorch_tcn", "TCN", lambda: torch.randn(BATCH, 3, 40), 3, [4, 4], kernel_size=3, activation="tanh"),
        "recurrent",
        "causal; receptive field 13",
        field=13,
    ),
    Known(
        "pytorch-tcn",
        "TCN(input_shape='NLC')",
        made(
            "pytorch_tcn", "TCN", lambda: numbers(3, 40), 3, [4, 4], kernel_size=3, input_shape="NLC", activation="tanh"
        ),
        "recurrent",
        "causal; receptive field 13",
        field=13,
    ),
    Known(
        "pytorch-tcn",
        "TCN(causal=False)",
        made("pytorch_tcn", "TCN", lambda: torch.randn(BATCH, 3, 40), 3, [4, 4], kernel_size=3, causal=False),
        "reads the future",
        BOTH,
    ),
    Known("x-transformers", "Decoder", x_transformer("Decoder"), "recurrent", CAUSAL, reaches_all=True),
    Known("x-transformers", "Encoder", x_transformer("Encoder"), "reads the future", BOTH),
    Known("minGRU-pytorch", "minGRU", made("minGRU_pytorch.minGRU", "minGRU", numbers, 8), "recurrent", STATE),
    Known("minGRU-pytorch", "minLSTM", made("minGRU_pytorch.minLSTM", "minLSTM", numbers, 8), "recurrent", STATE),
    Known(
        "minGRU-pytorch",
        "minLM",
        made("minGRU_pytorch.minLM", "minLM", ids, num_tokens=VOCABULARY, dim=16, depth=2),
        "recurrent",
        STATE,
    ),
    Known("mambapy", "Mamba", mamba_py("Mamba"), "recurrent", STATE),
    Known("LRU-pytorch", "LRU", made("LRU_pytorch", "LRU", numbers, 8, 4, 16), "recurrent", STATE),
    Known("s5-pytorch", "S5", made("s5", "S5", numbers, 8, 16), "recurrent", STATE),
    Known("s5-pytorch", "S5(bidir=True)", made("s5", "S5", numbers, 8, 16, bidir=True), "reads the future", BOTH),
    Known(
        "conformer",
        "ConformerBlock",
        made("conformer", "ConformerBlock", lambda: numbers(16), dim=16, dim_head=8, heads=2, conv_kernel_size=5),
        "reads the future",
        BOTH,
    ),
    Known(
        "linformer",
        "Linformer",
        made("linformer", "Linformer", lambda: numbers(16), dim=16, seq_len=STEPS, depth=1, heads=2, k=4),
        "reads the future",
        f"{BOTH}; sequences of one length",
    ),
    Known(
        "local-attention",
        "LocalTransformer(window 4)",
        made(
            "local_attention",
            "LocalTransformer",
            ids,
            num_tokens=VOCABULARY,
            max_seq_len=STEPS,
            dim=16,
            depth=1,
            heads=2,
            dim_head=8,
            local_attn_window_size=4,
            causal=True,
        ),
        "recurrent",
        "causal; receptive field 5",
        field=5,
    ),
]
