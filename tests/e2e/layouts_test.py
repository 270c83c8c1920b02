#!/usr/bin/env python3
"""Real workers over Gloo: tensor and pipeline parallel jobs have the losses of one worker, and a job paused on one layout
resumes on another."""
import sys
import unittest

from cluster import Cluster, tiny_job

TRAINING = {"train_iters": 12, "global_batch_size": 8, "seq_length": 48}


def job(name, dp=1, tp=1, pp=1, more=None, **sections):
    return tiny_job(name=name, training=TRAINING, validation={"eval_interval": 6, "eval_iters": 1},
                    parallelism={"data_parallel_size": dp, "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp,
                                 **(more or {})}, **sections)


class Layouts(unittest.TestCase):
    def assert_same(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for step, loss in want.items():
            self.assertLessEqual(abs(got[step] - loss) / loss, 1e-5, f"step {step}: {got[step]} against {loss}")

    def finish(self, cluster, spec):
        submitted = cluster.submit(spec)
        self.assertEqual(cluster.wait(submitted, "SUCCEEDED", "FAILED"), "SUCCEEDED")
        return submitted

    def test_every_layout_is_the_same_run(self):
        with Cluster(slots=4) as cluster:
            one = self.finish(cluster, job("one"))
            want = cluster.losses(one)
            evals = [r["eval"]["loss"] for r in cluster.metrics(one) if "eval" in r]
            self.assertEqual(len(evals), 3)
            sequence_parallel = {"sequence_parallel": True, "tp_comm_overlap": True}
            virtual_stages = {"pipeline_model_parallel_layout": "E|t|t|L"}  # two on each rank
            for layout in ({"tp": 2}, {"pp": 2}, {"pp": 2, "more": virtual_stages}, {"tp": 2, "pp": 2}, {"dp": 2, "tp": 2},
                           {"tp": 2, "more": sequence_parallel}, {"dp": 2, "more": {"context_parallel_size": 2}}):
                done = self.finish(cluster, job("-".join(f"{k}{v}" for k, v in layout.items() if k != "more"), **layout))
                self.assert_same(cluster.losses(done), want)
                for got, expected in zip([r["eval"]["loss"] for r in cluster.metrics(done) if "eval" in r], evals):
                    self.assertAlmostEqual(got, expected, delta=1e-5 * expected)

    def test_a_job_resumes_on_another_layout(self):
        with Cluster(slots=4) as cluster:
            want = cluster.losses(self.finish(cluster, job("straight")))
            moved = cluster.submit(job("moved", dp=2, checkpoint={"save_interval": 2}))
            cluster.wait_step(moved, 2)
            cluster.cli("jobs", "pause", moved)
            if cluster.wait(moved, "PAUSED", "SUCCEEDED") == "PAUSED":
                cluster.cli("jobs", "resume", moved, "--set", "parallelism.data_parallel_size=1", "--set",
                            "parallelism.tensor_model_parallel_size=2", "--set", "parallelism.pipeline_model_parallel_size=2")
                self.assertEqual(cluster.wait(moved, "SUCCEEDED", "FAILED"), "SUCCEEDED")
                self.assertEqual(cluster.job(moved)["attempts"][-1]["world_size"], 4)
            self.assert_same(cluster.losses(moved), want)
            self.assertEqual(TRAINING["train_iters"], len(want))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
