#!/usr/bin/env python3
"""Where checkpoints lie: a disk that fills up between saves and in the middle of one, and a path that two jobs ask for."""
import json
import os
import re
import subprocess
import sys
import time
import unittest

from cluster import Cluster, logs, tiny_job

LONG = {"train_iters": 5000, "global_batch_size": 64, "seq_length": 64}
SHORT = {"train_iters": 2}


class SmallDisk(unittest.TestCase):
    def on_a_small_disk(self, run):
        with Cluster(slots=2) as cluster:
            disk = cluster.dir / "disk"
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk], check=True)
            try:
                run(cluster, disk)
            finally:
                subprocess.run(["umount", disk], check=True)

    @staticmethod
    def fill(disk):
        with open(disk / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"\0" * 65536)
            except OSError:
                pass
        for size in (4096, 1):  # the last pages
            try:
                with open(disk / "filler", "ab", buffering=0) as filler:
                    while True:
                        filler.write(b"\0" * size)
            except OSError:
                pass

    def test_a_disk_that_fills_up_in_the_middle_of_a_save_costs_that_save(self):
        self.on_a_small_disk(self.fill_in_a_save)

    def fill_in_a_save(self, cluster, disk):
        path = disk / "checkpoints"
        job = cluster.submit(tiny_job(name="full", training=LONG, checkpoint={"path": str(path), "save_interval": 5},
                                      parallelism={"data_parallel_size": 1}))
        cluster.wait_step(job, 8)
        end = time.monotonic() + 60
        while True:
            frozen = cluster.freeze(job, "save")
            saving = list(path.glob(".saving-*"))
            # The free space was checked, and the manifest, which comes last, is not there yet.
            if saving and not list(saving[0].glob("manifest.json*")):
                break
            cluster.thaw(frozen)
            self.assertLess(time.monotonic(), end, "no save was caught in its middle")
        kept = {entry.name for entry in path.glob("step-*")}
        self.assertTrue(kept)
        self.fill(disk)
        cluster.thaw(frozen)
        self.assertTrue(cluster.until(lambda: cluster.events(job, "CheckpointFailed")))
        event = cluster.events(job, "CheckpointFailed")[0]
        self.assertEqual(event["cause"]["cause_class"], "CAUSE_CLASS_STORAGE")
        self.assertIn(str(path / saving[0].name.removeprefix(".saving-")), event["message"])
        self.assertIn("No space left on device", event["message"])
        self.assertEqual(cluster.state(job), "RUNNING")
        frozen = cluster.freeze(job, "step")
        self.assertEqual({entry.name for entry in path.iterdir()}, kept, "nothing half written, nothing lost")
        self.assertIn("Saving=false SaveFailed", cluster.cli("jobs", "describe", job).stdout)
        cluster.cli("model", "export", "--checkpoint", path / max(kept), "--out", cluster.dir / "exported")
        os.remove(disk / "filler")
        step = int(cluster.job(job)["progress"]["step"])
        cluster.thaw(frozen)
        cluster.until(lambda: int(cluster.job(job)["progress"]["last_checkpoint_step"]) > step)
        self.assertIn("Saving=true", cluster.cli("jobs", "describe", job).stdout)
        self.assertEqual(len(cluster.job(job)["attempts"]), 1)
        cluster.cli("jobs", "cancel", job)
        cluster.wait(job, "CANCELLED")

    def test_a_full_disk_leaves_the_older_checkpoint_and_training_goes_on(self):
        self.on_a_small_disk(self.fill_between_saves)

    def fill_between_saves(self, cluster, disk):
        path = disk / "checkpoints"
        job = cluster.submit(tiny_job(name="full", training=LONG, checkpoint={"path": str(path), "save_interval": 5}))
        cluster.wait_step(job, 8)
        frozen = cluster.freeze(job, "step")
        self.fill(disk)
        kept = {entry.name for entry in path.iterdir() if entry.name.startswith("step-")}
        self.assertTrue(kept)
        cluster.thaw(frozen)
        failed = re.compile(rb"the checkpoint of step \d+ failed, training goes on: .*")
        self.assertTrue(cluster.until(lambda: len(failed.findall(logs(cluster, job))) >= 2))
        # The first one may have been under way, and the other rank only knows that rank 0 failed.
        said = re.compile(re.escape(f"{path} has 0 B free").encode() + rb".*a checkpoint needs")
        self.assertTrue(cluster.until(lambda: said.search(logs(cluster, job))))
        self.assertTrue(cluster.until(lambda: len(cluster.events(job, "CheckpointFailed")) >= 2))
        self.assertEqual(cluster.state(job), "RUNNING")
        frozen = cluster.freeze(job, "step")
        self.assertEqual({entry.name for entry in path.iterdir()}, kept, "nothing half written, nothing lost")
        cluster.cli("model", "export", "--checkpoint", path / max(kept), "--out", cluster.dir / "exported")
        os.remove(disk / "filler")
        step = int(cluster.job(job)["progress"]["step"])
        cluster.thaw(frozen)
        cluster.until(lambda: int(cluster.job(job)["progress"]["last_checkpoint_step"]) > step)
        self.assertEqual(len(cluster.job(job)["attempts"]), 1)
        cluster.cli("jobs", "cancel", job)
        cluster.wait(job, "CANCELLED")


class SharedPath(unittest.TestCase):
    def test_two_jobs_do_not_share_a_checkpoint_path(self):
        with Cluster(slots=2) as cluster:
            shared = {"path": str(cluster.dir / "shared"), "save_interval": 2}
            first = cluster.submit(tiny_job(name="first", training=LONG, checkpoint=shared))
            (cluster.dir / "second.json").write_text(json.dumps(tiny_job(name="second", training=SHORT, checkpoint=shared)))
            result = cluster.cli("jobs", "submit", "-f", cluster.dir / "second.json", check=False)
            self.assertEqual(result.returncode, 5)
            self.assertIn(first, result.stderr)
            (cluster.dir / "link").symlink_to(cluster.dir / "shared")
            linked = tiny_job(name="linked", training=SHORT, checkpoint={**shared, "path": str(cluster.dir / "link")})
            (cluster.dir / "linked.json").write_text(json.dumps(linked))
            cluster.wait_step(first, 2)
            self.assertEqual(cluster.cli("jobs", "submit", "-f", cluster.dir / "linked.json", check=False).returncode, 5)
            cluster.wait_step(first, 4)
            cluster.cli("jobs", "cancel", first)
            cluster.wait(first, "CANCELLED")
            theirs = cluster.job(first)["checkpoints"]
            self.assertTrue(theirs)
            left = sorted(entry.name for entry in (cluster.dir / "shared").glob("step-*"))
            # What it left there is its own: another job is refused before it takes a slot.
            second = cluster.submit(tiny_job(name="second", training=SHORT, checkpoint=shared))
            self.assertEqual(cluster.wait(second, "FAILED", "SUCCEEDED"), "FAILED")
            described = cluster.job(second)
            self.assertEqual(described.get("attempts", []), [])
            message = described["failure"]["message"]
            self.assertIn(f"checkpoint.path: {shared['path']} holds checkpoints of job {first}", message)
            self.assertIn("give this job a checkpoint.path of its own, or none", message)
            self.assertEqual(sorted(entry.name for entry in (cluster.dir / "shared").glob("step-*")), left)
            # Its weights may be taken.
            spec = tiny_job(name="tuned", training=SHORT)
            spec["model"]["pretrained_checkpoint"] = str(cluster.dir / "shared" / left[-1])
            tuned = cluster.submit(spec)
            self.assertEqual(cluster.wait(tuned, "SUCCEEDED", "FAILED"), "SUCCEEDED")
            self.assertFalse(cluster.job(tuned)["attempts"][0].get("resumed"))


if __name__ == "__main__":
    if os.geteuid() != 0:  # root of a namespace may mount a file system of its own
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--mount", sys.executable, *sys.argv])
    sys.exit(unittest.main(verbosity=2))
