"""One training step of SmolLM2-135M on the CPU, Slipway's next to transformers', and the ratio of their times.

    .deps/pyref/bin/python tests/bench/cpu_step_peer.py build/release/bin/cpu_step_bench

fp32, one row of 512 tokens, 2 threads: forward, backward, clipping, AdamW, medians over the steps. The two take turns, so
that a busy machine disturbs both alike. There, --threads 1 and the ratio of processor times are the ones to look at.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make_model():
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                         num_attention_heads=9, num_key_value_heads=3, rms_norm_eps=1e-5, tie_word_embeddings=True,
                         rope_parameters={"rope_type": "default", "rope_theta": 1e5}, attn_implementation="sdpa")
    return LlamaForCausalLM(config)


def peer_steps(model, optimizer, ids, count):
    times = {"forward_s": [], "backward_s": [], "optimizer_s": [], "step_s": [], "processor_s": []}
    for step in range(count + 1):
        start, processor_start = time.perf_counter(), time.process_time()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        forward_end = time.perf_counter()
        loss.backward()
        backward_end = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end = time.perf_counter()
        if step > 0:
            for key, value in zip(times, (forward_end - start, backward_end - forward_end, end - backward_end,
                                          end - start, time.process_time() - processor_start)):
                times[key].append(value)
    return {key: statistics.median(values) for key, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, 49152, (1, options.tokens))
    command = [options.bench] + [f"--{key}={getattr(options, key)}" for key in ("tokens", "steps", "threads")]
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    ratios, processor_ratios = [], []
    for _ in range(options.rounds):
        ours = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                         check=True).stdout)
        peer = peer_steps(model, optimizer, ids, options.steps)
        ratios.append(ours["step_s"] / peer["step_s"])
        processor_ratios.append(ours["processor_s"] / peer["processor_s"])
        for name, times in (("slipway", ours), ("transformers", peer)):
            print(f"{name:13}", "  ".join(f"{key[:-2]} {value:.3f} s" for key, value in times.items()))
    print(f"slipway / transformers: {min(ratios):.3f} to {max(ratios):.3f}, processor time "
          f"{min(processor_ratios):.3f} to {max(processor_ratios):.3f}")


if __name__ == "__main__":
    main()
