#!/usr/bin/env bash
# Runs the GPU tests of a bundle made by gpu-tests.sh and writes each verdict as JSON.    usage: run.sh [RESULTS.json]
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
RESULTS=${1:-gpu-results.json}
TORCH_LIB=${SLIPWAY_TORCH_LIB:-$(python3 -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "lib"))')}
export LD_LIBRARY_PATH=$TORCH_LIB:$HERE/syslib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SLIPWAY_LIB_DIR=$HERE/lib SLIPWAY_BIN_DIR=$HERE/bin
failed=0
xml=$(mktemp -d)
for binary in "$HERE"/bin/*_test; do
  name=$(basename "$binary")
  "$binary" --gtest_output=xml:"$xml/$name.xml" >"$xml/$name.log" 2>&1 || { failed=1; tail -n 60 "$xml/$name.log"; }
  tail -n 3 "$xml/$name.log"
done
python3 - "$xml" "$RESULTS" "$(cat "$HERE/commit")" <<'PY'
import datetime, glob, json, os, subprocess, sys
import xml.etree.ElementTree as tree
directory, results, commit = sys.argv[1:]
devices = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True).stdout.split("\n")
verdicts = {}
for path in sorted(glob.glob(os.path.join(directory, "*.xml"))):
    for case in tree.parse(path).getroot().iter("testcase"):
        name = f"{os.path.basename(path)[:-4]}:{case.get('classname')}.{case.get('name')}"
        verdicts[name] = "failed" if case.find("failure") is not None else "passed"
json.dump({"commit": commit, "date": datetime.date.today().isoformat(), "devices": [d for d in devices if d],
           "tests": verdicts}, open(results, "w"), indent=2)
print(sum(v == "passed" for v in verdicts.values()), "passed,", sum(v != "passed" for v in verdicts.values()), "failed")
PY
exit $failed
