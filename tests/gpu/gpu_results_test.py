#!/usr/bin/env python3
"""Every test that needs one GPU has a verdict in docs/gpu-results.json, every verdict is "passed", and none is of a test that
is gone. Those that need two GPUs may still lack one: such a machine is not always at hand, and the last line says how many do.
usage: gpu_results_test.py SOURCE_DIR BIN_DIR ONE_GPU_BINARY... -- TWO_GPU_BINARY..."""
import ast
import json
import subprocess
import sys
from pathlib import Path

source, bin_dir = Path(sys.argv[1]), Path(sys.argv[2])
split = sys.argv.index("--")
one_gpu, two_gpus = sys.argv[3:split], sys.argv[split + 1:]


def cases_of(binary):
    """Names as gtest's XML has them, without running anything."""
    listing = subprocess.run([bin_dir / binary, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    suite = ""
    for line in listing.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith(" "):
            yield f"{binary}:{suite}{name.strip()}"
        elif name.endswith("."):
            suite = name


def job_cases(suite):
    for node in ast.parse((source / "tests/gpu/job_gpu.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == suite:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name.startswith("test_"):
                    yield f"job_gpu:{node.name}.{method.name}"


def wanted(binaries, suite):
    return {case for binary in binaries for case in cases_of(binary)} | set(job_cases(suite))


needs_one, needs_two = wanted(one_gpu, "OneGpu"), wanted(two_gpus, "TwoGpus")
recorded = json.loads((source / "docs/gpu-results.json").read_text())["tests"]
missing = sorted(needs_one - set(recorded))
faults = [f"{case} has no verdict: run scripts/gpu-tests.sh on a machine with GPUs" for case in missing]
faults += [f"{case} is recorded and is no test any more" for case in sorted(set(recorded) - needs_one - needs_two)]
faults += [f"{case}: {record['verdict']}" for case, record in sorted(recorded.items()) if record["verdict"] != "passed"]
for fault in faults:
    print(fault, file=sys.stderr)
print(f"{len(needs_one)} tests of one GPU, {len(needs_two)} of two ({len(needs_two - set(recorded))} of them not run yet), "
      f"{len(faults)} faults")
sys.exit(1 if faults or not needs_one else 0)
