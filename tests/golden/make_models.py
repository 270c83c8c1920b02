"""Makes the golden models and values in data/: tiny random models in Hugging Face's format, with what transformers
computes from them. Run with a Python that has transformers 5 and torch (scripts/setup.sh --full makes one):

    .deps/pyref/bin/python tests/golden/make_models.py [NAME ...]

README.md describes the files. A rerun with the same versions and processor gives the same bytes.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM)

DATA = pathlib.Path(__file__).resolve().parent / "data"
ROWS, LENGTH, STEPS = 2, 24, 5
VOCAB = 260
OPTIMIZER = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip_grad": 1.0}

COMMON = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=68, num_hidden_layers=2, max_position_embeddings=512,
              hidden_act="silu", initializer_range=0.02, attention_dropout=0.0, bos_token_id=256, eos_token_id=257,
              attn_implementation="eager")
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# A short original context, so that the 24 positions reach all three bands of the scaling.
ROPE_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

MODELS = {
    "llama": (LlamaForCausalLM,
              LlamaConfig(**COMMON, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
                          tie_word_embeddings=False, rope_parameters=ROPE_LLAMA3)),
    "qwen2": (Qwen2ForCausalLM,
              Qwen2Config(**COMMON, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
                          tie_word_embeddings=True, use_sliding_window=False, rope_parameters=ROPE)),
    "qwen3": (Qwen3ForCausalLM,
              Qwen3Config(**COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=24, rms_norm_eps=1e-6,
                          tie_word_embeddings=False, use_sliding_window=False, rope_parameters=ROPE)),
    "qwen3_tied": (Qwen3ForCausalLM,
                   Qwen3Config(**COMMON, num_attention_heads=2, num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-6,
                               tie_word_embeddings=True, use_sliding_window=False, rope_parameters=ROPE)),
    # The middle layer has no experts. No auxiliary loss, which is another one than ours.
    "qwen3_moe": (Qwen3MoeForCausalLM,
                  Qwen3MoeConfig(**{**COMMON, "num_hidden_layers": 3}, num_attention_heads=4, num_key_value_heads=2,
                                 head_dim=24, rms_norm_eps=1e-6, tie_word_embeddings=False, use_sliding_window=False,
                                 rope_parameters=ROPE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=20,
                                 norm_topk_prob=True, router_aux_loss_coef=0.0, mlp_only_layers=[1])),
}


def randomize(model, generator):
    """Weights far enough from their start values that a dropped bias or norm weight shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_((0.5 if name.endswith("bias") else 0.12) * noise)


def by_file_name(prefix, name, value):
    """The tensors of a parameter under the names that they have in files: transformers 5 computes with all experts of a
    layer in one tensor."""
    if name.endswith("experts.gate_up_proj"):
        for expert, both in enumerate(value):
            for projection, part in zip(("gate", "up"), both.chunk(2)):
                yield f"{prefix}{name[:-len('gate_up_proj')]}{expert}.{projection}_proj.weight", part.contiguous()
    elif name.endswith("experts.down_proj"):
        for expert, part in enumerate(value):
            yield f"{prefix}{name[:-len('down_proj')]}{expert}.down_proj.weight", part.contiguous()
    else:
        yield prefix + name, value


def make_batches(generator):
    """STEPS batches of tokens, labels (the next token) and 0/1 weights of the labels, different in number by row."""
    tokens = torch.randint(0, VOCAB, (STEPS, ROWS, LENGTH + 1), generator=generator)
    mask = torch.zeros(STEPS, ROWS, LENGTH)
    for step in range(STEPS):
        mask[step, 0, 3 * step:LENGTH - 1] = 1  # most of the row
        mask[step, 1, 7:10 + step] = 1          # a few tokens
        mask[step, 1, 20] = 1
    return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous(), mask


def loss_of(model, input_ids, labels, mask):
    logits = model(input_ids=input_ids, use_cache=False).logits.float()
    losses = torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), reduction="none")
    weights = mask.view(-1)
    return logits, (losses * weights).sum() / weights.sum()


def make_optimizer(model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": OPTIMIZER["weight_decay"]},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]), eps=OPTIMIZER["eps"],
                             foreach=False, fused=False)


def write_transformers4_config(path):
    """The spelling of transformers 4, so that readers meet both."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"
    config.pop("layer_types", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make(name, cls, config, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = cls(config).float().eval()
    randomize(model, generator)
    directory = DATA / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if name == "qwen2":
        write_transformers4_config(directory / "config.json")
    # What the values below belong to is what a reader of the directory gets.
    model = cls.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32).eval()

    input_ids, labels, mask = make_batches(generator)
    tensors = {"input_ids": input_ids, "labels": labels, "loss_mask": mask}
    optimizer = make_optimizer(model)
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        logits, loss = loss_of(model, input_ids[step], labels[step], mask[step])
        loss.backward()
        if step == 0:
            tensors["logits"] = logits.detach().clone()
            for parameter_name, parameter in model.named_parameters():
                tensors.update(by_file_name("grad.", parameter_name, parameter.grad.detach().clone()))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["clip_grad"], foreach=False)
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item(), "loss_tokens": int(mask[step].sum())})
    for parameter_name, parameter in model.named_parameters():
        tensors.update(by_file_name("after.", parameter_name, parameter.detach().clone()))
    save_file(tensors, directory / "golden.safetensors")
    golden = {"optimizer": OPTIMIZER, "steps": steps,
              "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}}
    (directory / "golden.json").write_text(json.dumps(golden, indent=2) + "\n")
    print(name, sum(p.numel() for p in model.parameters()), "parameters", [round(s["loss"], 4) for s in steps],
          [round(s["grad_norm"], 3) for s in steps])


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for seed, (name, (cls, config)) in enumerate(MODELS.items()):
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(name, cls, config, 1000 + seed)
    total = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    print(f"{total} bytes in {DATA.name}/")


if __name__ == "__main__":
    main()
