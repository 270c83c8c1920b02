#!/usr/bin/env python3
"""A tiny Llama from submit to export: trains on two workers, loses one to kill -9, recovers from its checkpoint, is paused,
resumes on one worker, finishes, is exported; and its losses are those of a run that nothing disturbed."""
import json
import sys
import unittest

from cluster import Cluster, tiny_job


def relative(a, b):
    return abs(a - b) / max(abs(b), 1e-12)


class Skeleton(unittest.TestCase):
    def test_from_submit_to_export(self):
        with Cluster(slots=2) as cluster:
            # Large enough batches that a step takes long enough to be hit in the middle.
            training = {"train_iters": 60, "global_batch_size": 64, "seq_length": 64}
            undisturbed = cluster.submit(tiny_job(name="undisturbed", training=training))
            self.assertEqual(cluster.wait(undisturbed, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            expected = cluster.losses(undisturbed)
            self.assertEqual(sorted(expected), list(range(1, 61)))

            job = cluster.submit(tiny_job(name="disturbed", training=training))
            cluster.wait_step(job, 7)
            cluster.kill("slipway-worker")
            cluster.until(lambda: len(cluster.job(job)["attempts"]) == 2)
            cluster.wait_step(job, 12)
            cluster.cli("jobs", "pause", job)
            cluster.wait(job, "PAUSED")
            self.assertEqual(cluster.processes("slipway-worker"), [])
            paused_step = int(cluster.job(job)["progress"]["step"])
            cluster.cli("jobs", "resume", job, "--set", "parallelism.data_parallel_size=1")
            self.assertEqual(cluster.wait(job, "SUCCEEDED", "FAILED"), "SUCCEEDED")

            described = cluster.job(job)
            attempts = described["attempts"]
            self.assertGreater(int(attempts[1]["resumed_from_step"]), 0)
            self.assertEqual(int(attempts[-1]["resumed_from_step"]), paused_step)
            cause = attempts[0]["end_cause"]
            self.assertEqual(cause["signal"], 9, cause)
            got = cluster.losses(job)
            self.assertEqual(sorted(got), sorted(expected))
            for step, loss in expected.items():
                self.assertLessEqual(relative(got[step], loss), 1e-5, f"step {step}: {got[step]} against {loss}")

            checkpoints = json.loads(cluster.cli("checkpoints", "list", job, "-o", "json").stdout)["checkpoints"]
            out = cluster.dir / "exported"
            cluster.cli("model", "export", "--checkpoint", checkpoints[-1]["path"], "--out", out)
            cluster.cli("model", "inspect", out)
            self.assertIn("ready at step", cluster.cli("jobs", "logs", job, "--attempt", "all").stdout)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
