#!/usr/bin/env python3
"""Known traps of schedulers and trainers, each from outside through real binaries: cancelling and pausing at awkward
moments, logs of jobs that died, requests that come twice, names, locks, non-finite losses."""
import json
import os
import re
import subprocess
import sys
import time
import unittest
import urllib.request

from cluster import BIN, Cluster, logs, tiny_job

LONG = {"train_iters": 5000, "global_batch_size": 64, "seq_length": 64}
SHORT = {"train_iters": 2}
MIDDLE = {"train_iters": 40, "global_batch_size": 64, "seq_length": 64}
NO_RESTARTS = {"max_restarts": 0, "max_user_error_restarts": 0}


def listed(cluster, *args):
    return json.loads(cluster.cli("jobs", "list", *args, "-o", "json").stdout).get("jobs", [])


def refused(test, cluster, spec, *args):
    path = cluster.dir / "refused.json"
    path.write_text(json.dumps(spec, ensure_ascii=False))
    before = len(listed(cluster))
    result = cluster.cli("jobs", "submit", "-f", path, *args, check=False)
    test.assertNotEqual(result.returncode, 0, result.stdout)
    test.assertEqual(len(listed(cluster)), before)
    return result


class Queue(unittest.TestCase):
    def test_a_pending_job_is_cancelled_and_never_starts(self):
        with Cluster(slots=2) as cluster:
            running = cluster.submit(tiny_job(name="running", training=LONG))
            cluster.wait(running, "RUNNING")
            pending = cluster.submit(tiny_job(name="pending", training=SHORT))
            self.assertEqual(cluster.state(pending), "QUEUED")
            cluster.cli("jobs", "cancel", pending)
            self.assertEqual(cluster.cli("jobs", "wait", pending, check=False).returncode, 9)
            cluster.cli("jobs", "cancel", running)
            cluster.wait(running, "CANCELLED")
            self.assertEqual(len(cluster.job(running)["attempts"]), 1, "the other was left alone")
            time.sleep(0.5)  # there is room for it now
            self.assertEqual(cluster.job(pending).get("attempts", []), [])
            self.assertEqual(cluster.state(pending), "CANCELLED")

    def test_a_job_cancelled_around_its_dispatch_never_runs_on(self):
        with Cluster(slots=2) as cluster:
            for number in range(10):
                job = cluster.submit(tiny_job(name="cancelled", training=LONG))
                time.sleep(number * 0.06)  # preflight, start-up, first steps
                cluster.cli("jobs", "cancel", job)
                self.assertEqual(cluster.wait(job, "CANCELLED", "FAILED", "SUCCEEDED"), "CANCELLED")
                self.assertTrue(cluster.until(lambda: not cluster.processes("slipway-worker"), 10), cluster.processes())

    def test_pause_holds_across_a_restart_and_resume_runs(self):
        with Cluster(slots=2) as cluster:
            running = cluster.submit(tiny_job(name="running", training=LONG))
            cluster.wait(running, "RUNNING")
            pending = cluster.submit(tiny_job(name="pending", training=SHORT))
            cluster.cli("jobs", "pause", pending)
            self.assertEqual(cluster.state(pending), "PAUSED")
            cluster.wait_step(running, 3)
            cluster.cli("jobs", "pause", running)
            cluster.cli("jobs", "wait", running, "--for", "paused", "--timeout", 30)
            cluster.kill_daemon()
            cluster.start()
            time.sleep(1)  # all slots are free
            self.assertEqual((cluster.state(running), cluster.state(pending)), ("PAUSED", "PAUSED"))
            self.assertEqual(cluster.job(pending).get("attempts", []), [])
            step = int(cluster.job(running)["progress"]["step"])
            shorter = cluster.cli("jobs", "resume", running, "--set", f"training.train_iters={step - 1}", check=False)
            self.assertEqual(shorter.returncode, 2)
            self.assertIn(f"training.train_iters: {step - 1}: is below the step that the job has reached, {step}",
                          shorter.stderr.replace(" = ", ": "))
            self.assertEqual(cluster.state(running), "PAUSED")
            cluster.cli("jobs", "resume", running)
            cluster.cli("jobs", "wait", running, "--for", "running", "--timeout", 30)
            cluster.wait_step(running, step + 3)
            self.assertEqual(int(cluster.job(running)["attempts"][-1]["resumed_from_step"]), step)
            cluster.cli("jobs", "cancel", running)
            cluster.cli("jobs", "resume", pending)
            self.assertEqual(cluster.cli("jobs", "wait", pending, "--timeout", 30).returncode, 0)
            self.assertEqual(cluster.state(pending), "SUCCEEDED")

    def test_a_killed_coordinator_takes_every_job_up_again(self):
        with Cluster(slots=2) as cluster:
            done = [cluster.submit(tiny_job(name=f"done-{n}", training=SHORT)) for n in range(2)]
            for job in done:
                cluster.wait(job, "SUCCEEDED")
            running = cluster.submit(tiny_job(name="running", training=LONG))
            cluster.wait(running, "RUNNING")
            pending = [cluster.submit(tiny_job(name=f"pending-{n}", training=SHORT)) for n in range(3)]
            before = {job: cluster.job(job) for job in done}

            def workers():  # not the preflights of those that wait
                return [pid for pid, command in cluster.processes("slipway-worker") if f"/{running}/" in command]

            old = workers()
            self.assertEqual(len(old), 2)
            cluster.wait_step(running, 5)
            step = int(cluster.job(running)["progress"]["step"])
            cluster.kill_daemon()
            cluster.start()
            self.assertEqual({job: cluster.job(job) for job in done}, before)
            self.assertEqual([cluster.state(job) for job in pending], ["QUEUED"] * 3)
            cluster.wait_step(running, step + 5)
            self.assertEqual(workers(), old, "no second set of workers")
            self.assertEqual(len(cluster.job(running)["attempts"]), 1)
            cluster.cli("jobs", "cancel", running)
            for job in pending:
                self.assertEqual(cluster.wait(job, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            started = [cluster.job(job)["start_time"] for job in pending]
            self.assertEqual(started, sorted(started), "in the order of the queue")

    def test_the_same_request_is_the_same_job(self):
        with Cluster(slots=2) as cluster:
            spec = tiny_job(name="twice", training=SHORT)
            first = cluster.submit(spec, "--request-id", "once")
            self.assertEqual(cluster.submit(spec, "--request-id", "once"), first)
            other = refused(self, cluster, tiny_job(name="twice", training={"train_iters": 3}), "--request-id", "once")
            self.assertEqual(other.returncode, 5)
            self.assertIn("request id once was used", other.stderr)
            self.assertIn(first, other.stderr)
            self.assertNotEqual(cluster.submit(spec), first, "two jobs may share a name")
            cluster.kill_daemon()
            cluster.start()
            self.assertEqual(cluster.submit(spec, "--request-id", "once"), first)
            self.assertEqual(len(listed(cluster, "--name", "twice")), 2)
            for job in listed(cluster):
                self.assertEqual(cluster.wait(job["id"], "SUCCEEDED", "FAILED"), "SUCCEEDED")

    def test_names_are_kept_exactly_or_refused_with_the_rule(self):
        with Cluster(slots=2) as cluster:
            for name in ["日本", "a b", "../x", "-rf", "", "x" * 300, "a\n", "a\0b", "😀", "A_b", ".", "..", "a/b"]:
                result = refused(self, cluster, tiny_job(name=name))
                self.assertEqual(result.returncode, 2, name)
                self.assertIn("must have 1 to 63 lower-case letters, digits", result.stderr, name)
            for name in ["a.b", "a_b", "x" * 63]:
                job = cluster.submit(tiny_job(name=name, training=SHORT))
                self.assertEqual(cluster.wait(job, "SUCCEEDED", "FAILED"), "SUCCEEDED")
                described = cluster.job(job)
                self.assertEqual(described["name"], name)
                self.assertIn(f" {name}\n", cluster.cli("jobs", "describe", job).stdout)
                self.assertEqual([entry["id"] for entry in listed(cluster, "--name", name)], [job])
                self.assertEqual(os.path.dirname(described["output_dir"]), str(cluster.data_dir / "jobs" / "default"))
            with urllib.request.urlopen(f"http://{cluster.addresses['http_address']}/metrics", timeout=10) as reply:
                text = reply.read().decode()
            sample = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\[\\"n])*",?)*\})? \S+')
            lines = [line for line in text.splitlines() if line and not line.startswith("#")]
            self.assertGreater(len(lines), 5)
            self.assertEqual([line for line in lines if not sample.fullmatch(line)], [])

    def test_a_second_daemon_is_refused_and_a_stale_lock_is_not_in_the_way(self):
        with Cluster(slots=2) as cluster:
            second = subprocess.run([BIN / "slipwayd", "--data-dir", cluster.data_dir, "--local", "1", "--listen", "127.0.0.1:0",
                                     "--http", "127.0.0.1:0"], capture_output=True, text=True, timeout=30)
            self.assertNotEqual(second.returncode, 0)
            self.assertIn(f"process {cluster.daemon.pid}", second.stderr)
            self.assertIn(str(cluster.data_dir), second.stderr)
            self.assertEqual(listed(cluster), [], "the first one serves")
            # Left by a killed daemon; naming a process that is gone; one that is something else by now; nothing at all.
            for left in [None, "4194303\n", f"{os.getpid()}\n", ""]:
                cluster.kill_daemon()
                if left is not None:
                    (cluster.data_dir / "slipwayd.lock").write_text(left)
                cluster.start()
                self.assertEqual(listed(cluster), [])


class Training(unittest.TestCase):
    def test_a_killed_job_shows_its_logs_to_the_end_and_why(self):
        with Cluster(slots=2) as cluster:
            job = cluster.submit(tiny_job(name="killed", training=LONG, fault_tolerance=NO_RESTARTS))
            cluster.wait_step(job, 3)
            os.kill(cluster.rank_pid(job), 9)
            self.assertEqual(cluster.cli("jobs", "wait", job, check=False).returncode, 8)
            printed = (cluster.data_dir / "jobs" / "default" / job / "logs" / "e1" / "rank0.log").read_bytes()
            self.assertIn(b" step 3 loss ", printed)
            self.assertEqual(logs(cluster, job, "--rank", "0"), printed)
            failure = cluster.job(job)["failure"]
            self.assertEqual((failure["cause_class"], failure["signal"]), ("CAUSE_CLASS_PROCESS_KILLED", 9))
            self.assertIn("signal 9", cluster.cli("jobs", "describe", job).stdout)

    def test_a_job_that_ends_at_once_shows_every_byte_and_its_exit_code(self):
        scripts = {"SLIPWAY_WORKER": str(BIN / "slipway-fake-worker"), "FAKE_WORKER_R1": "ready 0; hang",
                   "FAKE_WORKER_R0": r"print first\n; spam 1000000; print \n\xff\xfe\n; print the last, without an end; exit 3"}
        os.environ.update(scripts)
        try:
            with Cluster(slots=2) as cluster:
                job = cluster.submit(tiny_job(name="short-lived", fault_tolerance=dict(NO_RESTARTS, termination_grace_seconds=1)))
                self.assertEqual(cluster.wait(job, "FAILED", "SUCCEEDED"), "FAILED")
                text = logs(cluster, job, "--rank", "0")
                self.assertTrue(text.startswith(b"first\n"), text[:50])
                self.assertTrue(text.endswith(b"\n\xff\xfe\nthe last, without an end"), text[-50:])
                self.assertEqual(max(map(len, text.split(b"\n"))), 1000000)
                self.assertEqual(cluster.job(job)["failure"]["exit_code"], 3)
                self.assertIn("exit code 3", cluster.cli("jobs", "describe", job).stdout)
        finally:
            for name in scripts:
                del os.environ[name]

    def test_a_pause_before_the_first_step_and_one_in_a_save_lose_nothing(self):
        with Cluster(slots=2) as cluster:
            undisturbed = cluster.submit(tiny_job(name="undisturbed", training=MIDDLE))
            self.assertEqual(cluster.wait(undisturbed, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            self.assertEqual(len(cluster.job(undisturbed)["attempts"]), 1)
            job = cluster.submit(tiny_job(name="paused", training=MIDDLE))
            cluster.until(lambda: cluster.state(job) == "STARTING")
            cluster.cli("jobs", "pause", job)
            cluster.cli("jobs", "wait", job, "--for", "paused", "--timeout", 30)
            self.assertEqual(cluster.processes("slipway-worker"), [])
            self.assertLessEqual(int(cluster.job(job).get("progress", {}).get("step", 0)), 3)
            cluster.cli("jobs", "resume", job)
            frozen = cluster.freeze(job, "save")
            cluster.cli("jobs", "pause", job)
            self.assertEqual(cluster.state(job), "PAUSING", "not paused before its checkpoint is durable")
            cluster.cli("jobs", "pause", job)  # once more changes nothing
            self.assertEqual(cluster.state(job), "PAUSING")
            cluster.thaw(frozen)
            cluster.cli("jobs", "wait", job, "--for", "paused", "--timeout", 30)
            described = cluster.job(job)
            self.assertEqual(described["checkpoints"][-1]["step"], described["progress"]["step"])
            self.assertTrue(os.path.isdir(described["checkpoints"][-1]["path"]))
            cluster.cli("jobs", "pause", job)
            self.assertEqual(cluster.job(job)["revision"], described["revision"], "paused already")
            cluster.cli("jobs", "resume", job)
            self.assertEqual(cluster.wait(job, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            self.assertEqual(cluster.logged_losses(job), cluster.logged_losses(undisturbed), "bit for bit on the same layout")

    def test_a_pause_in_an_evaluation_loses_nothing(self):
        def evaluations(job):
            return {int(r["eval"]["step"]): r["eval"]["loss"] for r in cluster.metrics(job) if "eval" in r}

        with Cluster(slots=2) as cluster:
            spec = {"training": MIDDLE, "validation": {"eval_interval": 4, "eval_iters": 4}}
            undisturbed = cluster.submit(tiny_job(name="undisturbed", **spec))
            self.assertEqual(cluster.wait(undisturbed, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            job = cluster.submit(tiny_job(name="paused", **spec))
            cluster.wait_step(job, 2)
            frozen = cluster.freeze(job, "eval")
            cluster.cli("jobs", "pause", job)
            self.assertEqual(cluster.state(job), "PAUSING", "not paused before its checkpoint is durable")
            cluster.thaw(frozen)
            cluster.cli("jobs", "wait", job, "--for", "paused", "--timeout", 30)
            described = cluster.job(job)
            self.assertEqual(described["checkpoints"][-1]["step"], described["progress"]["step"])
            cluster.cli("jobs", "resume", job)
            self.assertEqual(cluster.wait(job, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            self.assertEqual(len(cluster.job(job)["attempts"]), 2)
            self.assertEqual(cluster.logged_losses(job), cluster.logged_losses(undisturbed), "bit for bit on the same layout")
            self.assertEqual(evaluations(job), evaluations(undisturbed))
            self.assertEqual(sorted(evaluations(job)), list(range(0, 41, 4)))

    def test_a_job_of_non_finite_steps_fails_and_keeps_its_checkpoint(self):
        with Cluster(slots=2) as cluster:
            job = cluster.submit(tiny_job(name="diverges", optimizer={"lr": 1e30, "clip_grad": 0},
                                          scheduler={"lr_decay_style": "constant"}, checkpoint={"save_interval": 1},
                                          training={"max_consecutive_nonfinite_steps": 3}))
            self.assertEqual(cluster.wait(job, "FAILED", "SUCCEEDED"), "FAILED")
            described = cluster.job(job)
            self.assertEqual(described["failure"]["cause_class"], "CAUSE_CLASS_NUMERIC")
            self.assertEqual(len(described["attempts"]), 1, "a restart would not help")
            steps = {int(r["step"]["step"]): r["step"] for r in cluster.metrics(job) if "step" in r}
            skipped = [step for step, record in steps.items() if record.get("skipped")]
            self.assertEqual(skipped, list(range(skipped[0], skipped[0] + 3)), "three in a row")
            self.assertEqual(steps[skipped[0]]["grad_norm"], "NaN")
            self.assertEqual(int(steps[skipped[-1]]["skipped_total"]), 3)
            text = logs(cluster, job)
            self.assertIn(b"grad norm nan", text)
            self.assertNotIn(b"-nan", text)
            # The last save before the skipped steps stays beside the newest two.
            self.assertIn(str(skipped[0] - 1), [checkpoint["step"] for checkpoint in described["checkpoints"]])
            for checkpoint in described["checkpoints"]:
                cluster.cli("model", "export", "--checkpoint", checkpoint["path"], "--out", cluster.dir / f"exported-{checkpoint['step']}")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
