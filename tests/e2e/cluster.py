"""A Slipway of real binaries for end-to-end tests: a coordinator with local slots in a directory of its own.

    with Cluster(slots=2) as cluster:
        job = cluster.submit(spec)
        cluster.wait(job, "RUNNING")

Everything waits with a generous deadline and says what it saw when that passes. Leaving the block stops the daemon and
fails the test when a process of this cluster is still alive.
"""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent.parent
BIN = Path(os.environ.get("SLIPWAY_BIN_DIR", REPO / "build" / "release" / "bin"))
MODELS = REPO / "tests" / "golden" / "data"
DEADLINE = 120.0


class Cluster:
    def __init__(self, slots=2, extra_args=(), keep=False):
        self.slots, self.extra_args, self.keep = slots, list(extra_args), keep
        self.dir = Path(tempfile.mkdtemp(prefix="slipway-e2e-"))
        self.data_dir = self.dir / "slipwayd"
        self.daemon = None
        self.checkpoint_dirs = {}

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, _value, _trace):
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.wait(60)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
        left = self.until(lambda: not self.processes(), 30, raises=False)
        leftover = self.processes()
        for pid, _ in leftover:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if kind is not None:
            print(f"--- end of {self.dir}/slipwayd.log")
            print("\n".join((self.dir / "slipwayd.log").read_text(errors="replace").splitlines()[-40:]))
            print(f"--- kept: {self.dir}")
        elif not self.keep:
            shutil.rmtree(self.dir, ignore_errors=True)
        if kind is None and not left:
            raise AssertionError(f"orphans after the daemon's end: {leftover}")

    def start(self):
        address = self.data_dir / "slipwayd.json"
        address.unlink(missing_ok=True)
        with open(self.dir / "slipwayd.log", "ab") as log:
            self.daemon = self._spawn(log)
        self.until(lambda: address.exists() or self.daemon.poll() is not None)
        if self.daemon.poll() is not None:
            raise AssertionError(f"slipwayd ended with {self.daemon.returncode}")
        self.addresses = json.loads(address.read_text())

    def _spawn(self, log):
        return subprocess.Popen(
            [BIN / "slipwayd", "--data-dir", self.data_dir, "--local", str(self.slots), "--listen", "127.0.0.1:0",
             "--http", "127.0.0.1:0", "--allow-root", self.dir, "--allow-root", REPO, *self.extra_args],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.dir)

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def cli(self, *args, check=True):
        result = subprocess.run([BIN / "slipway", "--server", self.addresses["grpc_address"], *map(str, args)], capture_output=True,
                                text=True, timeout=DEADLINE * 2)
        if check and result.returncode != 0:
            raise AssertionError(f"slipway {' '.join(map(str, args))} exited with {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def submit(self, spec, *args):
        path = self.dir / f"job-{time.monotonic_ns()}.json"
        path.write_text(json.dumps(spec))
        return self.cli("jobs", "submit", "-f", path, "-o", "name", *args).stdout.strip()

    def job(self, job):
        return json.loads(self.cli("jobs", "describe", job, "-o", "json").stdout)

    def state(self, job):
        return self.job(job)["state"].removeprefix("JOB_STATE_")

    def metrics(self, job):
        return json.loads(self.cli("jobs", "metrics", job, "--max-records", 10000, "-o", "json").stdout).get("records", [])

    def losses(self, job):
        """Loss of each step; of steps that ran twice, the last."""
        return {int(r["step"]["step"]): float(r["step"]["loss"]) for r in self.metrics(job) if "step" in r}

    def logged_losses(self, job):
        """The same from the workers' logs, which lose nothing when a coordinator dies (the metrics store may)."""
        text = self.cli("jobs", "logs", job, "--attempt", "all", "--rank", "0").stdout
        return {int(step): float(loss) for step, loss in re.findall(r" step (\d+) loss (\d+\.\d+) ", text)}

    def events(self, job, kind):
        """What happened to a job of that type, oldest first."""
        events = json.loads(self.cli("jobs", "events", job, "-o", "json").stdout).get("events", [])
        return [event for event in events if event["type"] == kind]

    def wait(self, job, *states, deadline=DEADLINE):
        seen = []

        def there():
            seen.append(self.state(job))
            return seen[-1] in states

        if not self.until(there, deadline, raises=False):
            raise AssertionError(f"{job} is {seen[-1]}, not {states}, after {deadline} s: {json.dumps(self.job(job))[:3000]}")
        return seen[-1]

    def wait_step(self, job, step, deadline=DEADLINE):
        self.until(lambda: int(self.job(job).get("progress", {}).get("step", 0)) >= step, deadline)

    @staticmethod
    def until(condition, deadline=DEADLINE, raises=True):
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.05)
        if raises:
            raise AssertionError(f"not so after {deadline} s")
        return False

    def processes(self, name=None):
        """(pid, command line) of this cluster's processes: those that name its directory."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            program = command.split(" ")[0].rsplit("/", 1)[-1]
            if str(self.dir) in command and state != "Z" and program.startswith("slipway"):
                if name is None or program == name:
                    found.append((int(entry), command))
        return found

    def kill(self, name, index=0):
        """SIGKILL to one process of that program; its command line."""
        self.until(lambda: len(self.processes(name)) > index)
        pid, command = self.processes(name)[index]
        os.kill(pid, signal.SIGKILL)
        return command

    def rank_pid(self, job, rank=0, program="slipway-worker"):
        """The process of a rank of the job's attempt, 0 while there is none."""
        here = re.compile(rf"/{job}/e\d+/r{rank}[/ ]")
        return next((pid for pid, command in self.processes(program) if here.search(command)), 0)

    def rank_phase(self, job, rank=0):
        """What a rank of the newest attempt is doing, read from the shared memory in which it says so."""
        attempts = sorted((self.data_dir / "agent" / "attempts" / job).glob("e*"), key=lambda path: int(path.name[1:]))
        try:
            board = (attempts[-1] / f"r{rank}" / "collective").read_bytes()
        except (IndexError, OSError):
            board = b""
        if len(board) < 16 + 2 * 136:
            return "start"  # it has not got so far
        # Two words, then two records of 17 words that take turns; the phase is the third text of four words.
        generation = struct.unpack_from("<Q", board, 8)[0]
        return board[16 + generation % 2 * 136:][64:96].split(b"\0")[0].decode() or "start"

    def is_at(self, job, moment):
        """Whether rank 0 is in that phase; "save": whether a checkpoint is being written, whatever the training does
        meanwhile. Rank 0 makes its temporary directory first and renames it last."""
        if moment != "save":
            return self.rank_phase(job) == moment
        if job not in self.checkpoint_dirs:
            self.checkpoint_dirs[job] = Path(self.job(job)["checkpoint_dir"])
        return any(self.checkpoint_dirs[job].glob(".saving-*"))

    def freeze(self, job, moment, deadline=20.0):
        """SIGSTOP to rank 0 at that moment: its process. Nothing that needs all ranks goes on until SIGCONT."""
        end, pid = time.monotonic() + deadline, 0
        while time.monotonic() < end:
            # Looking for the process takes longer than a phase may: it is known before the phase comes.
            if not pid or self.process_state(pid) in "ZX":
                pid = self.rank_pid(job)
            if not pid or not self.is_at(job, moment):
                time.sleep(0.0005)
                continue
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                continue
            self.until(lambda: self.process_state(pid) in "TZX", 5)
            if self.process_state(pid) == "T" and self.is_at(job, moment):
                return pid
            self.thaw(pid)
        raise AssertionError(f"rank 0 of {job} was not caught in {moment} in {deadline} s: {json.dumps(self.job(job))[:2000]}")

    @staticmethod
    def process_state(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "X"

    @staticmethod
    def thaw(pid):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def logs(cluster, job, *args):
    """Byte for byte: what a worker prints need not be text."""
    return subprocess.run([BIN / "slipway", "--server", cluster.addresses["grpc_address"], "jobs", "logs", job, *args],
                          capture_output=True, timeout=60).stdout


def tiny_job(model="llama", **sections):
    """A job over mock data that takes a few milliseconds a step. Sections are merged over it."""
    spec = {
        "name": "tiny",
        "model": {"hf_path": str(MODELS / model)},
        "dataset": {"kind": "mock", "mock_num_samples": 64},
        "training": {"train_iters": 40, "global_batch_size": 4, "micro_batch_size": 1, "seq_length": 32},
        "optimizer": {"lr": 1e-3},
        "parallelism": {"data_parallel_size": 2, "device": "cpu"},
        "precision": {"name": "fp32"},
        "checkpoint": {"save_interval": 5},
    }
    for section, values in sections.items():
        if isinstance(values, dict):
            spec.setdefault(section, {}).update(values)
        else:
            spec[section] = values
    return spec
