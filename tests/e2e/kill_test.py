#!/usr/bin/env python3
"""kill -9, 28 times: each kind of process, at start-up, while the ranks meet, while they load, in a step, in a save, in a
pause and before the reply to a submission. No submitted job is lost, nothing is left running, and each job ends with the
losses of a run that nothing disturbed. Rank 0 is stopped before each kill, so that what the job was doing then is known and
not guessed."""
import json
import os
import select
import signal
import subprocess
import sys
import time
import unittest

from cluster import BIN, Cluster, tiny_job

TRAINING = {"train_iters": 80, "global_batch_size": 96, "seq_length": 64}
PROGRAMS = ["slipwayd", "slipway-agent", "slipway-shim", "slipway-worker"]
MOMENTS = ["start", "rendezvous", "load", "step", "save", "pause", "reply"]
BEFORE_TRAINING = MOMENTS[:3]
# What the job's state and rank 0's phase must be at the kill. Saves go on beside steps.
HIT = {"start": ("STARTING", "start device rendezvous load"), "rendezvous": ("STARTING", "rendezvous"),
       "load": ("STARTING", "load"), "step": ("RUNNING", "step"), "save": ("RUNNING", "save step"),
       "pause": ("PAUSING", "save step"), "reply": ("RUNNING", "step")}


class Submitter:
    """A `jobs submit` that is stopped after the server stored the job and before it told the reply."""

    def __init__(self, cluster, name):
        for number in range(20):
            self.name = f"{name}-{number}"
            self.spec = tiny_job(name=self.name, training={"train_iters": 2})
            path = cluster.dir / f"{self.name}.json"
            path.write_text(json.dumps(self.spec))
            self.process = subprocess.Popen(
                [BIN / "slipway", "--server", cluster.addresses["grpc_address"], "jobs", "submit", "-f", path, "-o", "name",
                 "--request-id", self.name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            log, stored = cluster.dir / "slipwayd.log", f'submitted as "{self.name}"'
            end = time.monotonic() + 20
            while stored not in log.read_text(errors="replace") and time.monotonic() < end:
                pass
            self.process.send_signal(signal.SIGSTOP)
            cluster.until(lambda: cluster.process_state(self.process.pid) in "TZX", 5)
            silent = not select.select([self.process.stdout], [], [], 0)[0]
            if cluster.process_state(self.process.pid) == "T" and silent:
                return
            self.process.kill()  # it was faster: another one
            self.process.communicate()
        raise AssertionError("no submission was caught before its reply")

    def submit_again(self, cluster):
        """Its reply is lost; the same request once more: the job."""
        self.process.kill()
        if said := self.process.communicate()[0]:
            raise AssertionError(f"the reply had come: {said}")
        job = cluster.submit(self.spec, "--request-id", self.name)
        listed = json.loads(cluster.cli("jobs", "list", "--name", self.name, "-o", "json").stdout)["jobs"]
        if [entry["id"] for entry in listed] != [job]:
            raise AssertionError(f"{self.name} is not one job: {listed}")
        return job


class Kills(unittest.TestCase):
    def setUp(self):
        self.kills = []
        self.replied = []

    def reach(self, cluster, moment, job):
        """The job at that moment, its rank 0 stopped: the process."""
        if moment == "start":
            cluster.until(lambda: cluster.rank_pid(job))
            frozen = cluster.rank_pid(job)
            os.kill(frozen, signal.SIGSTOP)
            return frozen
        frozen = cluster.freeze(job, moment if moment in ("rendezvous", "load", "save") else "step")
        if moment == "pause":
            cluster.cli("jobs", "pause", job)
            cluster.thaw(frozen)
            frozen = cluster.freeze(job, "save")
        return frozen

    def kill(self, cluster, program, moment, job):
        frozen = self.reach(cluster, moment, job)
        submitter = Submitter(cluster, f"reply-{program}") if moment == "reply" else None
        described = cluster.job(job)
        state, phase = described["state"].removeprefix("JOB_STATE_"), cluster.rank_phase(job)
        self.kills.append((program, moment, state, phase, int(described.get("progress", {}).get("step", 0))))
        self.assertEqual(state, HIT[moment][0], self.kills)
        self.assertIn(phase, HIT[moment][1].split(), self.kills)
        if program == "slipwayd":
            cluster.kill_daemon()
            cluster.thaw(frozen)
            cluster.start()
        else:
            victim = cluster.processes(program)[0][0] if program == "slipway-agent" else cluster.rank_pid(job, program=program)
            os.kill(victim, signal.SIGKILL)
            cluster.thaw(frozen)
        if submitter is not None:
            self.replied.append(submitter.submit_again(cluster))
        return len(described["attempts"])

    def go_on(self, cluster, program, moment, job, attempts):
        """Until the job trains again, beyond where it was."""
        if moment == "pause":
            cluster.wait(job, "PAUSED")
            self.assertEqual(cluster.processes("slipway-worker"), [])
            cluster.cli("jobs", "resume", job)
        elif program in ("slipway-shim", "slipway-worker"):
            cluster.until(lambda: len(cluster.job(job)["attempts"]) > attempts)
        # A job that was hit at its start is short and may be at its end already.
        cluster.wait(job, "RUNNING", *(["SUCCEEDED"] if moment in BEFORE_TRAINING else []))
        if program in ("slipwayd", "slipway-agent"):  # whose death the workers do not notice
            cluster.wait_step(job, self.kills[-1][-1] + 1)

    def hit(self, cluster, moment):
        """Four kills of one job at that moment. Before training each hits a job of its own."""
        job, jobs = None, []
        for program in PROGRAMS:
            if job is None:
                short = dict(TRAINING, train_iters=TRAINING["train_iters"] if moment not in BEFORE_TRAINING else 8)
                job = cluster.submit(tiny_job(name=f"hit-in-{moment}", training=short, scheduler={"lr_decay_iters": TRAINING["train_iters"]},
                                              checkpoint={"save_interval": 2}, fault_tolerance={"max_user_error_restarts": 50}))
                jobs.append(job)
                if moment not in BEFORE_TRAINING:
                    cluster.wait_step(job, 5)
            attempts = self.kill(cluster, program, moment, job)
            self.go_on(cluster, program, moment, job, attempts)
            if moment in BEFORE_TRAINING:
                self.assertEqual(cluster.wait(job, "SUCCEEDED", "FAILED"), "SUCCEEDED", cluster.job(job).get("failure"))
                job = None
        return jobs

    def test_every_process_at_every_moment(self):
        resumed, jobs = [], []
        with Cluster(slots=2) as cluster:
            undisturbed = cluster.submit(tiny_job(name="undisturbed", training=TRAINING))
            self.assertEqual(cluster.wait(undisturbed, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            self.assertEqual(len(cluster.job(undisturbed)["attempts"]), 1)
            want = cluster.logged_losses(undisturbed)
            self.assertEqual(sorted(want), list(range(1, TRAINING["train_iters"] + 1)))
            for moment in MOMENTS:
                start = time.monotonic()
                hit = self.hit(cluster, moment)
                for job in hit + self.replied:
                    self.assertEqual(cluster.wait(job, "SUCCEEDED", "FAILED"), "SUCCEEDED", cluster.job(job).get("failure"))
                for job in hit:
                    described = cluster.job(job)
                    got = cluster.logged_losses(job)
                    self.assertEqual(sorted(got), list(range(1, int(described["progress"]["train_iters"]) + 1)))
                    for step, loss in got.items():
                        self.assertLessEqual(abs(want[step] - loss) / loss, 1e-5, f"step {step}: {loss} against {want[step]}")
                    resumed += [int(a.get("resumed_from_step", 0)) for a in described["attempts"]]
                jobs += hit
                print(f"{moment}: {time.monotonic() - start:.1f} s", flush=True)
            submitted = {undisturbed, *jobs, *self.replied}
            listed = {job["id"]: job for job in json.loads(cluster.cli("jobs", "list", "-o", "json").stdout)["jobs"]}
            self.assertLessEqual(submitted, set(listed), "no job is lost")
            self.assertTrue(cluster.until(lambda: {job["state"] for job in json.loads(
                cluster.cli("jobs", "list", "-o", "json").stdout)["jobs"]} == {"JOB_STATE_SUCCEEDED"}), "each one ends well")
            for program in ("slipway-worker", "slipway-shim"):
                cluster.until(lambda program=program: not cluster.processes(program), 20)
            self.assertEqual(len(cluster.processes("slipway-agent")), 1)
        print(f"{'killed':16} {'moment':8} {'state':10} {'rank 0 in':10} step")
        for program, moment, state, phase, step in self.kills:
            print(f"{program:16} {moment:8} {state:10} {phase:10} {step}")
        print(f"resumed from steps {sorted(step for step in resumed if step)}")
        self.assertEqual([kill[:2] for kill in self.kills], [(program, moment) for moment in MOMENTS for program in PROGRAMS])
        self.assertTrue(any(step > 0 for step in resumed), resumed)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
