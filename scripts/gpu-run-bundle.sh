#!/usr/bin/env bash
# Runs the GPU tests of a bundle made by gpu-tests.sh, from the root of a source tree, and writes each verdict into a JSON
# file; verdicts that are there already and are not made anew stay.    usage: run.sh [RESULTS.json] [PATTERN]
# PATTERN: an extended regular expression; only binaries and scripts whose name it matches run.
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
RESULTS=${1:-gpu-results.json}
PATTERN=${2:-.}
TORCH_LIB=${SLIPWAY_TORCH_LIB:-$(python3 -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "lib"))')}
export LD_LIBRARY_PATH=$TORCH_LIB:$HERE/syslib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SLIPWAY_LIB_DIR=$HERE/lib SLIPWAY_BIN_DIR=$HERE/bin
failed=0
out=$(mktemp -d)

run_binary() {
  local name=$1
  [[ $name =~ $PATTERN ]] || return 0
  "$HERE/bin/$name" --gtest_output=xml:"$out/$name.xml" >"$out/$name.log" 2>&1 || { failed=1; tail -n 60 "$out/$name.log"; }
  tail -n 3 "$out/$name.log"
}
run_jobs() {
  [[ job_gpu =~ $PATTERN ]] || return 0
  python3 tests/gpu/job_gpu.py "$1" "$out/job_gpu.$1.json" >"$out/job_gpu.$1.log" 2>&1 || { failed=1; tail -n 80 "$out/job_gpu.$1.log"; }
  tail -n 3 "$out/job_gpu.$1.log"
}

for name in $(cat "$HERE/one_gpu"); do run_binary "$name"; done
run_jobs OneGpu
if [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
  for name in $(cat "$HERE/two_gpus"); do run_binary "$name"; done
  run_jobs TwoGpus
fi

python3 - "$out" "$RESULTS" "$(cat "$HERE/commit")" <<'PY'
import datetime, glob, json, os, subprocess, sys
import xml.etree.ElementTree as tree
directory, results, commit = sys.argv[1:]
gpus = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True).stdout.split("\n")
verdicts = {}
for path in sorted(glob.glob(os.path.join(directory, "*.xml"))):
    for case in tree.parse(path).getroot().iter("testcase"):
        name = f"{os.path.basename(path)[:-4]}:{case.get('classname')}.{case.get('name')}"
        verdicts[name] = "failed" if case.find("failure") is not None else "passed"
for path in sorted(glob.glob(os.path.join(directory, "*.json"))):
    for name, verdict in json.load(open(path)).items():
        verdicts[f"job_gpu:{name}"] = verdict
try:
    tests = json.load(open(results))["tests"]
except FileNotFoundError:
    tests = {}
seen = {"commit": commit, "date": datetime.date.today().isoformat(), "devices": [gpu for gpu in gpus if gpu]}
for name, verdict in verdicts.items():
    tests[name] = {"verdict": verdict, **seen}
json.dump({"tests": dict(sorted(tests.items()))}, open(results, "w"), indent=1)
print(sum(v == "passed" for v in verdicts.values()), "passed,", sum(v != "passed" for v in verdicts.values()), "failed")
PY
exit $failed
