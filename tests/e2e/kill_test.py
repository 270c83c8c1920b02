#!/usr/bin/env python3
"""kill -9, twenty times: each kind of process, at start-up, in a step, in a save, in a pause and around a reply. No submitted
job is lost, nothing is left running, and each job ends with the losses of a run that nothing disturbed."""
import itertools
import sys
import time
import unittest

from cluster import Cluster, tiny_job

TRAINING = {"train_iters": 160, "global_batch_size": 96, "seq_length": 64}
PROGRAMS = ["slipwayd", "slipway-agent", "slipway-shim", "slipway-worker"]
MOMENTS = ["start", "step", "save", "pause", "reply"]


class Kills(unittest.TestCase):
    def setUp(self):
        self.kills = []

    def kill(self, cluster, program, moment, job):
        described = cluster.job(job)
        state, step = described["state"].removeprefix("JOB_STATE_"), int(described.get("progress", {}).get("step", 0))
        if program == "slipwayd":
            cluster.kill_daemon()
            cluster.start()
        else:
            if program != "slipway-agent" and not cluster.until(lambda: cluster.processes(program), 20, raises=False):
                return False  # it had just ended
            cluster.kill(program)
        self.kills.append((program, moment, state, step))
        return True

    def reach(self, cluster, job, moment, step):
        """Waits for the moment; a later step each time, so that every round makes progress."""
        if moment == "start":
            cluster.until(lambda: cluster.state(job) in ("STARTING", "RECOVERING", "RUNNING"))
        elif moment == "save":
            # Saves come every second step: right after an odd one the next save is a step away.
            cluster.wait_step(job, step | 1)
        elif moment == "pause":
            cluster.wait_step(job, step)
            cluster.cli("jobs", "pause", job)
        else:
            cluster.wait_step(job, step)

    def settle(self, cluster, job):
        """After a pause was hit: the job is paused or running again; either way it goes on."""
        state = cluster.wait(job, "PAUSED", "RUNNING", "STARTING", "QUEUED", "SUCCEEDED")
        if state == "PAUSED" or cluster.wait(job, "PAUSED", "SUCCEEDED") == "PAUSED":
            cluster.cli("jobs", "resume", job)

    def run_round(self, cluster, program, want):
        job = cluster.submit(tiny_job(name=f"hit-{program}", training=TRAINING, checkpoint={"save_interval": 2},
                                      fault_tolerance={"max_user_error_restarts": 50, "max_restarts_without_progress": 20}))
        others = []
        for moment, step in zip(MOMENTS, itertools.count(8, 16)):
            self.reach(cluster, job, moment, step)
            if moment == "reply":
                request = f"reply-{program}"
                spec = tiny_job(name="queued", training={"train_iters": 2})
                first = cluster.submit(spec, "--request-id", request)
                self.kill(cluster, program, moment, job)
                self.assertEqual(cluster.submit(spec, "--request-id", request), first)
                others.append(first)
            else:
                self.kill(cluster, program, moment, job)
            if moment == "pause":
                self.settle(cluster, job)
        for other in [job, *others]:
            self.assertEqual(cluster.wait(other, "SUCCEEDED", "FAILED"), "SUCCEEDED", cluster.job(other).get("failure"))
        got = cluster.logged_losses(job)
        self.assertEqual([step for step in want if step not in got], [])
        for step, loss in want.items():
            self.assertLessEqual(abs(got[step] - loss) / loss, 1e-5, f"step {step}: {got[step]} against {loss}")
        return [int(a.get("resumed_from_step", 0)) for a in cluster.job(job)["attempts"]]

    def test_twenty_kills(self):
        resumed = []
        with Cluster(slots=2) as cluster:
            undisturbed = cluster.submit(tiny_job(name="undisturbed", training=TRAINING))
            self.assertEqual(cluster.wait(undisturbed, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            want = cluster.logged_losses(undisturbed)
            self.assertEqual(sorted(want), list(range(1, TRAINING["train_iters"] + 1)))
            for program in PROGRAMS:
                start = time.monotonic()
                resumed += self.run_round(cluster, program, want)
                print(f"{program}: {time.monotonic() - start:.1f} s", flush=True)
        print(f"{'program':16} {'moment':8} {'state':12} step")
        for program, moment, state, step in self.kills:
            print(f"{program:16} {moment:8} {state:12} {step}")
        self.assertEqual(len(self.kills), len(PROGRAMS) * len(MOMENTS))
        self.assertTrue(any(step > 0 for step in resumed), resumed)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
