#!/usr/bin/env python3
"""SmolLM2-135M-Instruct: the loss of a known text, and an export without training that is bit-equal and that transformers
loads with equal logits.

    .deps/pyref/bin/python tests/full/smollm2_reload.py    # needs transformers, torch and .demo/model (scripts/demo.sh)
"""
import json
import subprocess
import sys
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))
from cluster import REPO, Cluster, tiny_job  # noqa: E402

MODEL = REPO / ".demo" / "model"
TEXT = "The capital of France is Paris. Water boils at one hundred degrees Celsius."
LOSS = 3.36155  # fp32, 14 predicted tokens


def tensors(directory):
    found = {}
    for file in sorted(Path(directory).glob("*.safetensors")):
        found.update(load_file(file))
    return found


def logits_and_loss(directory):
    ids = AutoTokenizer.from_pretrained(directory)(TEXT, return_tensors="pt").input_ids
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    faults = {key: value for key, value in info.items() if value}
    assert not faults, f"{directory}: {faults}"
    with torch.no_grad():
        out = model.eval()(ids, labels=ids)
    return out.logits, out.loss.item()


class SmolLm2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (MODEL / "model.safetensors").exists():
            subprocess.run([sys.executable, REPO / "scripts" / "make_smollm2.py", MODEL], check=True)

    def test_the_known_loss(self):
        with Cluster(slots=1) as cluster:
            says = json.loads(cluster.cli("model", "eval", "--model", MODEL, "--text", TEXT, "-o", "json").stdout)
        self.assertLessEqual(abs(says["loss"] - LOSS), 1e-4)
        self.assertLessEqual(abs(logits_and_loss(MODEL)[1] - LOSS), 1e-4)

    def test_an_untouched_export_is_the_model(self):
        spec = tiny_job(str(MODEL), name="untouched", optimizer={"lr": 0}, checkpoint={"export_hf": True},
                        training={"train_iters": 1, "global_batch_size": 2, "seq_length": 16})
        with Cluster(slots=2) as cluster:
            submitted = cluster.submit(spec)
            self.assertEqual(cluster.wait(submitted, "SUCCEEDED", "FAILED", deadline=600), "SUCCEEDED")
            exported = Path(cluster.job(submitted)["output_dir"]) / "hf"
            want, got = tensors(MODEL), tensors(exported)
            self.assertEqual(sorted(got), sorted(want))
            for name, tensor in want.items():
                self.assertEqual(got[name].dtype, tensor.dtype, name)
                self.assertTrue(torch.equal(got[name], tensor), name)
            self.assertTrue(torch.equal(logits_and_loss(exported)[0], logits_and_loss(MODEL)[0]))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
