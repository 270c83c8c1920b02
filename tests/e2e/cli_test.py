#!/usr/bin/env python3
"""The programs as a shell sees them: pipes whose reader leaves, a full disk, a port that is taken, and README's pretraining
example from raw text to a generated reply."""
import json
import shutil
import socket
import subprocess
import sys
import unittest

from cluster import BIN, DEADLINE, REPO, Cluster, tiny_job

READER_GONE = 141
TOKENIZER = REPO / "tests" / "golden" / "data" / "tokenizers" / "smollm2"


class Pipes(unittest.TestCase):
    def first_line(self, cluster, *args):
        """What `slipway ARGS | head -1` prints, its exit code and what it said on stderr."""
        process = subprocess.Popen([BIN / "slipway", "--server", cluster.addresses["grpc_address"], *args],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            line = process.stdout.readline()
            process.stdout.close()
            code = process.wait(DEADLINE)
            return line, code, process.stderr.read()
        finally:
            process.kill()
            process.wait()
            process.stderr.close()

    def test_streams_end_with_their_reader(self):
        with Cluster(slots=2) as cluster:
            # It waits for slots that are not there, so that nothing more is ever printed about it.
            queued = cluster.submit(tiny_job(name="queued", parallelism={"data_parallel_size": 4}))
            job = cluster.submit(tiny_job(training={"train_iters": 100000}))
            cluster.wait_step(job, 2)
            for args in (["jobs", "watch", queued], ["jobs", "watch", job], ["jobs", "logs", "-f", job],
                         ["jobs", "watch", job, "-o", "json"], ["jobs", "logs", "-f", job, "-o", "yaml"]):
                line, code, said = self.first_line(cluster, *args)
                self.assertNotEqual(line, "", args)
                self.assertEqual((code, said), (READER_GONE, ""), args)
            self.assertEqual(cluster.state(job), "RUNNING")
            with open("/dev/full", "w") as full:
                lost = subprocess.run([BIN / "slipway", "--server", cluster.addresses["grpc_address"], "jobs", "list"],
                                      stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
            self.assertEqual(lost.returncode, 1)
            self.assertIn("cannot write to standard output: No space left on device", lost.stderr)
            for name in (job, queued):
                cluster.cli("jobs", "cancel", name)
                cluster.wait(name, "CANCELLED")


class Ports(unittest.TestCase):
    def test_a_taken_port_is_said_in_our_own_words(self):
        with Cluster(slots=1) as cluster, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for flag in ("--listen", "--http"):
                other = "--http" if flag == "--listen" else "--listen"
                daemon = subprocess.run(
                    [BIN / "slipwayd", "--data-dir", cluster.dir / "second", flag, f"127.0.0.1:{port}", other, "127.0.0.1:0"],
                    capture_output=True, text=True, timeout=DEADLINE)
                self.assertEqual(daemon.returncode, 1)
                self.assertEqual(daemon.stdout, "")
                lines = [line for line in daemon.stderr.splitlines() if "critical" in line]
                self.assertEqual(len(lines), 1, daemon.stderr)
                self.assertIn(f"127.0.0.1:{port}", lines[0])
                self.assertIn(flag, lines[0])
                self.assertNotIn(".cc:", daemon.stderr)


class Holding(unittest.TestCase):
    def test_a_held_job_waits_until_it_is_released(self):
        with Cluster(slots=1) as cluster:
            one_rank = {"data_parallel_size": 1}
            first = cluster.submit(tiny_job(name="first", training={"train_iters": 100000}, parallelism=one_rank))
            cluster.wait(first, "RUNNING")
            held = cluster.submit(tiny_job(name="held", training={"train_iters": 2}, parallelism=one_rank))
            cluster.cli("jobs", "hold", held)
            cluster.cli("jobs", "cancel", first)
            cluster.wait(first, "CANCELLED")
            after = cluster.submit(tiny_job(name="after", training={"train_iters": 2}, parallelism=one_rank))
            self.assertEqual(cluster.wait(after, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            self.assertEqual(cluster.state(held), "QUEUED")
            cluster.cli("jobs", "release", held)
            self.assertEqual(cluster.wait(held, "SUCCEEDED", "FAILED"), "SUCCEEDED")


class Pretraining(unittest.TestCase):
    """examples/pretrain, with the steps cut short; `.demo/model`, whose tokenizer it takes, is stood in for by the same one."""

    def test_the_example_ends_with_a_model_that_writes(self):
        with Cluster(slots=2) as cluster:
            example = cluster.dir / "examples" / "pretrain"
            shutil.copytree(REPO / "examples" / "pretrain", example)
            shutil.copytree(TOKENIZER, cluster.dir / ".demo" / "model")
            data = example / "data"
            data.mkdir()
            subprocess.run([sys.executable, example / "make_corpus.py", data / "licences.jsonl"], check=True,
                           stdout=subprocess.DEVNULL)
            cluster.cli("data", "prepare", "--input", data / "licences.jsonl", "--output-prefix", data / "licences",
                        "--tokenizer", cluster.dir / ".demo" / "model", "--append-eod", "--workers", "2")
            job = cluster.cli("jobs", "submit", "-f", example / "job.yaml", "-o", "name", "--set", "training.train_iters=2",
                              "--set", "scheduler.lr_warmup_iters=1", "--set", "validation.eval_interval=2",
                              "--set", "model.vocab_size=1752").stdout.strip()  # of the cut tokenizer
            self.assertEqual(cluster.wait(job, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            self.assertNotIn("with loss", cluster.cli("jobs", "events", job).stdout)
            checkpoints = json.loads(cluster.cli("checkpoints", "list", job, "-o", "json").stdout)["checkpoints"]
            out = cluster.dir / "exported"
            exported = json.loads(cluster.cli("model", "export", "--checkpoint", checkpoints[-1]["path"], "--out", out, "-o",
                                              "json").stdout)
            self.assertIn("tokenizer.json", exported["copied_files"])
            reply = json.loads(cluster.cli("generate", "--model", out, "--prompt", "This License", "--max-new-tokens", "3", "-o",
                                           "json").stdout)
            self.assertGreaterEqual(reply["new_tokens"], 1)
            self.assertEqual(cluster.cli("generate", "--model", cluster.dir / "none", "--prompt", "a", check=False).returncode, 3)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
