#!/usr/bin/env python3
"""slipwayd --local and its agent: who survives whose death, and what is left behind. Workers are make-believe
(slipway-fake-worker), so that only the processes around them are on trial."""
import os
import signal
import sys
import time
import unittest

from cluster import BIN, Cluster

os.environ["SLIPWAY_WORKER"] = str(BIN / "slipway-fake-worker")
os.environ["FAKE_WORKER"] = "train 20"

JOB = {
    "name": "make-believe",
    "model": {"preset": "qwen3_0_6b"},
    "dataset": {"kind": "mock"},
    "training": {"train_iters": 100000, "global_batch_size": 2, "seq_length": 16},
    "optimizer": {"lr": 1e-3},
    "parallelism": {"data_parallel_size": 2, "device": "cpu"},
}


class LocalDaemon(unittest.TestCase):
    def running(self, cluster):
        job = cluster.submit(JOB)
        cluster.wait(job, "RUNNING")
        cluster.wait_step(job, 3)
        return job

    def test_a_killed_coordinator_finds_its_agent_and_its_job_again(self):
        with Cluster(slots=2) as cluster:
            job = self.running(cluster)
            before = cluster.processes("slipway-agent")
            workers = cluster.processes("slipway-fake-worker")
            cluster.kill_daemon()
            time.sleep(1)
            cluster.start()
            self.assertEqual(cluster.state(job), "RUNNING")
            step = int(cluster.job(job)["progress"]["step"])
            cluster.wait_step(job, step + 20)
            self.assertEqual(cluster.processes("slipway-agent"), before, "adopted, not doubled")
            self.assertEqual(cluster.processes("slipway-fake-worker"), workers)
            self.assertEqual(len(cluster.job(job)["attempts"]), 1)
            cluster.cli("jobs", "cancel", job)
            cluster.wait(job, "CANCELLED")

    def test_a_killed_agent_is_started_again_and_goes_on(self):
        with Cluster(slots=2) as cluster:
            job = self.running(cluster)
            workers = cluster.processes("slipway-fake-worker")
            cluster.kill("slipway-agent")
            step = int(cluster.job(job)["progress"]["step"])
            cluster.wait_step(job, step + 20)
            self.assertEqual(cluster.processes("slipway-fake-worker"), workers)
            self.assertEqual(len(cluster.job(job)["attempts"]), 1)

    def test_sigterm_saves_and_puts_jobs_back_into_the_queue(self):
        with Cluster(slots=2) as cluster:
            job = self.running(cluster)
            waiting = cluster.submit(dict(JOB, name="waiting"))
            cluster.daemon.send_signal(signal.SIGTERM)
            self.assertEqual(cluster.daemon.wait(120), 0)
            self.assertEqual(cluster.processes(), [], "no orphans")
            cluster.start()
            described = cluster.job(job)
            self.assertEqual(described["checkpoints"][0]["epoch"], "1")
            self.assertIn("end_time", described["attempts"][0])
            self.assertNotIn("end_cause", described["attempts"][0])
            self.assertEqual(cluster.state(waiting), "QUEUED")

    def test_a_second_signal_does_not_wait_for_checkpoints(self):
        os.environ["FAKE_WORKER"] = "ready 0; step 5; hang"
        try:
            with Cluster(slots=2) as cluster:
                job = cluster.submit(JOB)
                cluster.wait(job, "RUNNING")
                cluster.daemon.send_signal(signal.SIGINT)
                time.sleep(1)
                self.assertIsNone(cluster.daemon.poll(), "waits for a checkpoint that does not come")
                cluster.daemon.send_signal(signal.SIGINT)
                self.assertEqual(cluster.daemon.wait(60), 0)
                self.assertEqual(cluster.processes(), [])
        finally:
            os.environ["FAKE_WORKER"] = "train 20"


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
