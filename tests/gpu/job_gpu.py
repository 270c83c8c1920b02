#!/usr/bin/env python3
"""Whole jobs on this machine's GPUs under the daemon: the losses of a CPU worker, recovery from kill -9, pause and resume,
export; with two GPUs also the layouts of two ranks over NCCL.

    SLIPWAY_BIN_DIR=build/release/bin python3 tests/gpu/job_gpu.py OneGpu|TwoGpus VERDICTS.json
"""
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))
from cluster import Cluster, tiny_job  # noqa: E402

TRAINING = {"train_iters": 12, "global_batch_size": 8, "seq_length": 64}
MODELS = ("llama", "qwen2", "qwen3_tied")


def job(name, device="cuda", model="llama", precision="fp32", training=(), parallelism=(), **sections):
    return tiny_job(model, name=name, training={**TRAINING, **dict(training)}, precision={"name": precision},
                    parallelism={"data_parallel_size": 1, "device": device, **dict(parallelism)}, **sections)


class GpuJobs(unittest.TestCase):
    """One daemon with the machine's GPUs, and one with CPU slots to compare with."""

    @classmethod
    def setUpClass(cls):
        cls.gpu, cls.cpu = Cluster(slots="gpu"), Cluster(slots=1)
        cls.gpu.__enter__()
        cls.cpu.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cpu.__exit__(None, None, None)
        cls.gpu.__exit__(None, None, None)

    def finish(self, cluster, spec, deadline=180):
        submitted = cluster.submit(spec)
        state = cluster.wait(submitted, "SUCCEEDED", "FAILED", deadline=deadline)
        self.assertEqual(state, "SUCCEEDED", json.dumps(cluster.job(submitted))[-3000:])
        return submitted

    def losses(self, cluster, spec):
        return cluster.losses(self.finish(cluster, spec))

    def assert_near(self, got, want, tolerance):
        self.assertEqual(sorted(got), sorted(want))
        for step, loss in want.items():
            self.assertLessEqual(abs(got[step] - loss) / loss, tolerance, f"step {step}: {got[step]} against {loss}")


class OneGpu(GpuJobs):
    def test_fp32_has_the_losses_of_the_cpu(self):
        for model in MODELS:
            with self.subTest(model=model):
                want = self.losses(self.cpu, job("cpu", "cpu", model))
                self.assert_near(self.losses(self.gpu, job("gpu", model=model)), want, 1e-4)

    def test_bf16_is_near(self):
        for model in MODELS:
            with self.subTest(model=model):
                want = self.losses(self.cpu, job("cpu", "cpu", model))
                self.assert_near(self.losses(self.gpu, job("gpu", model=model, precision="bf16_mixed")), want, 2e-2)

    def test_a_killed_worker_comes_back(self):
        longer = {"train_iters": 400, "seq_length": 256}
        want = self.losses(self.gpu, job("undisturbed", training=longer, checkpoint={"save_interval": 20}))
        killed = self.gpu.submit(job("killed", training=longer, checkpoint={"save_interval": 20}))
        self.gpu.wait_step(killed, 40)
        self.gpu.kill("slipway-worker")
        self.assertEqual(self.gpu.wait(killed, "SUCCEEDED", "FAILED", deadline=180), "SUCCEEDED")
        described = self.gpu.job(killed)
        self.assertEqual(len(described["attempts"]), 2)
        self.assert_near(self.gpu.losses(killed), want, 1e-4)

    def test_pause_resume_and_export(self):
        longer = {"train_iters": 400, "seq_length": 256}
        spec = job("paused", training=longer, checkpoint={"save_interval": 50, "export_hf": True})
        want = self.losses(self.gpu, spec)
        paused = self.gpu.submit(spec)
        self.gpu.wait_step(paused, 30)
        self.gpu.cli("jobs", "pause", paused)
        self.assertEqual(self.gpu.wait(paused, "PAUSED", "SUCCEEDED"), "PAUSED")
        self.gpu.cli("jobs", "resume", paused)
        self.assertEqual(self.gpu.wait(paused, "SUCCEEDED", "FAILED", deadline=180), "SUCCEEDED")
        described = self.gpu.job(paused)
        self.assert_near(self.gpu.losses(paused), want, 1e-4)
        self.assertTrue((Path(described["output_dir"]) / "hf" / "model.safetensors").exists())


class TwoGpus(GpuJobs):
    def test_two_ranks_over_nccl_are_the_same_run(self):
        for model in ("llama", "qwen3_tied"):
            want = self.losses(self.cpu, job("cpu", "cpu", model))
            for layout in ("data_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"):
                with self.subTest(model=model, layout=layout):
                    got = self.losses(self.gpu, job("two", model=model, parallelism={"data_parallel_size": 1, layout: 2}))
                    self.assert_near(got, want, 1e-4)

    def test_a_killed_rank_takes_the_other_along_and_the_job_comes_back(self):
        longer = {"train_iters": 400, "seq_length": 256}
        spec = job("killed", training=longer, parallelism={"tensor_model_parallel_size": 2}, checkpoint={"save_interval": 20})
        want = self.losses(self.gpu, spec)
        killed = self.gpu.submit(spec)
        self.gpu.wait_step(killed, 40)
        self.gpu.kill("slipway-worker", 1)
        self.assertEqual(self.gpu.wait(killed, "SUCCEEDED", "FAILED", deadline=180), "SUCCEEDED")
        self.assert_near(self.gpu.losses(killed), want, 1e-4)


class Verdicts(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.verdicts = {}

    def startTest(self, test):
        super().startTest(test)
        self.verdicts[test.id().removeprefix("__main__.")] = "passed"

    def stopTest(self, test):
        failed = {t.id() for t, _ in self.failures + self.errors} | {
            t.test_case.id() for t, _ in self.failures + self.errors if hasattr(t, "test_case")}
        if test.id() in failed:
            self.verdicts[test.id().removeprefix("__main__.")] = "failed"
        super().stopTest(test)


if __name__ == "__main__":
    chosen, verdicts_path = sys.argv[1:]
    suite = unittest.defaultTestLoader.loadTestsFromTestCase({"OneGpu": OneGpu, "TwoGpus": TwoGpus}[chosen])
    result = unittest.TextTestRunner(verbosity=2, resultclass=Verdicts).run(suite)
    Path(verdicts_path).write_text(json.dumps(result.verdicts))
    sys.exit(0 if result.wasSuccessful() and result.verdicts else 1)
