#!/usr/bin/env python3
"""Writes data/toy_tokenizer/: a byte-level tokenizer whose token counts can be worked out by hand.

One token per UTF-8 byte (id = byte), then <|im_start|>=256, <|im_end|>=257, <|endoftext|>=258, <|pad|>=259. ChatML
template without a default system message. Needs only the standard library.

    python3 tests/golden/make_toy_tokenizer.py
"""
import json
from pathlib import Path

OUT = Path(__file__).resolve().parent / "data" / "toy_tokenizer"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def printable_bytes() -> list:
    """The character that byte-level BPE writes for each byte: itself where printable, else from U+0100 on."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(moved)) for b in range(256)]


def main() -> None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True} for i, text in enumerate(SPECIAL)],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {c: b for b, c in enumerate(printable_bytes())}, "merges": []},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>",
              "clean_up_tokenization_spaces": False, "model_max_length": 4096, "chat_template": TEMPLATE}
    OUT.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (OUT / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
