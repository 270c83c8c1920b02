#!/usr/bin/env python3
"""What Slipway exports, transformers loads: equal logits for models that were not trained, and Slipway's own loss for
models that were. Real jobs on several layouts, checkpoints exported by the job and by `slipway model export`.

    .deps/pyref/bin/python tests/full/export_reload.py    # needs transformers and torch; SLIPWAY_BIN_DIR names the build
"""
import json
import shutil
import sys
import unittest
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))
from cluster import MODELS, Cluster, tiny_job  # noqa: E402

TOKENIZER = MODELS / "toy_tokenizer"
TEXT = "The quick brown fox jumps over the lazy dog."
TRAINING = {"train_iters": 3, "global_batch_size": 4, "seq_length": 32}
LAYOUTS = {"llama": {"tp": 2}, "qwen2": {"dp": 2}, "qwen3": {"pp": 2, "tp": 2}, "qwen3_tied": {"dp": 2, "pp": 2}}


def job(model, dp=1, tp=1, pp=1, **sections):
    return tiny_job(str(model), name="export", training=TRAINING,
                    parallelism={"data_parallel_size": dp, "tensor_model_parallel_size": tp,
                                 "pipeline_model_parallel_size": pp}, **sections)


def load(directory):
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, dtype="auto")
    faults = {key: value for key, value in info.items() if value}
    assert not faults, f"{directory}: {faults}"
    return model.eval()


def logits(directory):
    with torch.no_grad():
        return load(directory)(torch.arange(3, 67).reshape(2, 32)).logits


def loss(directory):
    ids = AutoTokenizer.from_pretrained(directory)(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        return load(directory)(ids, labels=ids).loss.item()


class ExportReload(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(slots=4)
        cls.cluster.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)

    def model(self, name, dtype=torch.float32):
        """A copy of a golden model in that type, with a tokenizer."""
        directory = self.cluster.dir / "models" / f"{name}-{dtype}"
        if not directory.exists():
            model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=dtype)
            model.save_pretrained(directory)
            for file in TOKENIZER.iterdir():
                shutil.copy(file, directory)
        return directory

    def finish(self, spec):
        submitted = self.cluster.submit(spec)
        state = self.cluster.wait(submitted, "SUCCEEDED", "FAILED")
        described = self.cluster.job(submitted)
        self.assertEqual(state, "SUCCEEDED", json.dumps(described)[-2000:])
        return described

    def export(self, described, *flags):
        out = self.cluster.dir / f"exported-{described['id']}{'-'.join(flags)}"
        self.cluster.cli("model", "export", "--checkpoint", described["checkpoints"][-1]["path"], "--out", out, *flags)
        return out

    def test_a_model_that_was_not_trained_comes_back_bit_for_bit(self):
        for name, layout in LAYOUTS.items():
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(model=name, dtype=dtype):
                    model = self.model(name, dtype)
                    done = self.finish(job(model, **layout, optimizer={"lr": 0}, checkpoint={"export_hf": True},
                                           precision={"name": "fp32" if dtype == torch.float32 else "bf16_mixed"}))
                    want = logits(model)
                    self.assertEqual(want.dtype, dtype)
                    for exported in (Path(done["output_dir"]) / "hf", self.export(done)):
                        self.assertTrue(torch.equal(logits(exported), want), exported)

    def test_a_trained_model_has_the_loss_that_slipway_says(self):
        for name, layout in LAYOUTS.items():
            with self.subTest(model=name):
                model = self.model(name)
                done = self.finish(job(model, **layout, optimizer={"lr": 1e-2}))
                exported = self.export(done)
                self.assertFalse(torch.equal(logits(exported), logits(model)))
                for directory in (exported, done["checkpoints"][-1]["path"]):
                    says = json.loads(self.cluster.cli("model", "eval", "--model", directory, "--text", TEXT, "-o", "json").stdout)
                    want = loss(exported)
                    self.assertLess(abs(says["loss"] - want) / want, 1e-5)

    def test_types(self):
        done = self.finish(job(self.model("qwen2"), dp=2))
        plain = logits(self.export(done))
        for name in ("float32", "bfloat16", "float16"):
            exported = self.export(done, "--dtype", name)
            model = load(exported)
            self.assertEqual({p.dtype for p in model.parameters()}, {getattr(torch, name)})
            error = (logits(exported).float() - plain).norm() / plain.norm()
            self.assertLess(error.item(), {"float32": 1e-7, "bfloat16": 3e-2, "float16": 3e-3}[name])

    def test_replies(self):
        model = self.model("qwen3_tied")
        done = self.finish(job(model))
        exported = self.export(done)
        tokenizer = AutoTokenizer.from_pretrained(exported)
        ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True,
                                            return_tensors="pt", return_dict=True)
        with torch.no_grad():
            reply = load(exported).generate(**ids, max_new_tokens=24, do_sample=False, eos_token_id=[257, 258])[0]
        want = tokenizer.decode(reply[ids["input_ids"].shape[1]:], skip_special_tokens=True)
        for directory in (exported, done["checkpoints"][-1]["path"]):
            got = self.cluster.cli("generate", "--model", directory, "--chat", "Hi", "--max-new-tokens", 24).stdout
            self.assertEqual(got, want + "\n")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
