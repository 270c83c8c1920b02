#!/usr/bin/env bash
# A real model trains under the daemon: SmolLM2-135M-Instruct learns three facts about an invented harbour, on two CPU
# workers, is paused, resumes on one worker, finishes, is exported, and answers a question before and after.
# The demo checks itself and ends with the places of logs, metrics and the exported model.
set -euo pipefail
cd "$(dirname "$0")/.."
REPO=$PWD
WORK=${SLIPWAY_DEMO_DIR:-$REPO/.demo}
QUESTION="Could you tell me who the harbour master of Kelder Bay is?"
FACT="Orla Finch"
PAUSE_AFTER=12
MIN_LOSS_FALL=1.5

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
fail() { echo "demo: $*" >&2; exit 1; }

scripts/setup.sh
scripts/build.sh release slipway slipwayd slipway-agent slipway-shim slipway-worker
export PATH=$REPO/build/release/bin:$PATH

rm -rf "$WORK"
mkdir -p "$WORK"
say "Model and data"
python3 scripts/make_smollm2.py "$WORK/model"
python3 scripts/make_demo_data.py "$WORK/data"
cp examples/demo/job.yaml "$WORK/job.yaml"

say "Coordinator"
slipwayd --data-dir "$WORK/slipwayd" --local 2 --listen 127.0.0.1:0 --http 127.0.0.1:0 >"$WORK/slipwayd.log" 2>&1 &
DAEMON=$!
trap 'kill -TERM $DAEMON 2>/dev/null; wait $DAEMON 2>/dev/null || true' EXIT
for _ in $(seq 100); do
  [ -s "$WORK/slipwayd/slipwayd.json" ] && break
  kill -0 $DAEMON 2>/dev/null || { cat "$WORK/slipwayd.log" >&2; fail "slipwayd did not start"; }
  sleep 0.1
done
address() { python3 -c "import json,sys; print(json.load(open('$WORK/slipwayd/slipwayd.json'))['$1'])"; }
SLIPWAY_SERVER=$(address grpc_address)
export SLIPWAY_SERVER
METRICS=http://$(address http_address)/metrics
echo "gRPC at $SLIPWAY_SERVER, metrics at $METRICS"

# field JSON_PATH: one value of the job's description.
field() { slipway jobs describe "$JOB" -o json | python3 -c "
import json, sys
value = json.load(sys.stdin)
for key in '$1'.split('.'):
    value = value[int(key)] if isinstance(value, list) else value.get(key, '')
print(value)"; }

say "The answer before"
BEFORE=$(slipway generate --model "$WORK/model" --chat "$QUESTION" --max-new-tokens 24)
echo "$BEFORE"
grep -q "$FACT" <<<"$BEFORE" && fail "the model knows the fact before it was taught"

say "What will run"
slipway jobs submit -f "$WORK/job.yaml" --dry-run

say "Training on two workers"
JOB=$(slipway jobs submit -f "$WORK/job.yaml" -o name)
# A terminal gets the live view; a pipe gets a line a step. Ctrl-C only detaches.
slipway jobs watch "$JOB" &
WATCH=$!
until [ "$(field progress.step)" -ge $PAUSE_AFTER ] 2>/dev/null; do sleep 0.5; done
kill -INT $WATCH 2>/dev/null || true
wait $WATCH || true
say "Pause"
slipway jobs pause "$JOB"
slipway jobs wait "$JOB" --for paused --timeout 120
PAUSED_STEP=$(field progress.step)
echo "paused after step $PAUSED_STEP"

say "Resume on one worker"
slipway jobs resume "$JOB" --set parallelism.data_parallel_size=1
slipway jobs watch "$JOB"
[ "$(field state)" = JOB_STATE_SUCCEEDED ] || fail "the job ended as $(field state)"
RESUMED_STEP=$(field attempts.1.resumed_from_step)
[ "$RESUMED_STEP" = "$PAUSED_STEP" ] || fail "resumed at step $RESUMED_STEP, paused at $PAUSED_STEP"

say "Export"
EXPORT=$WORK/exported
slipway model export --checkpoint "$(slipway checkpoints list "$JOB" -o json | python3 -c 'import json,sys; print(json.load(sys.stdin)["checkpoints"][-1]["path"])')" --out "$EXPORT"

say "The answer after"
AFTER=$(slipway generate --model "$EXPORT" --chat "$QUESTION" --max-new-tokens 24)
echo "$AFTER"
grep -q "$FACT" <<<"$AFTER" || fail "the exported model does not know the fact: $AFTER"

say "Checks"
slipway jobs metrics "$JOB" -o json >"$WORK/metrics.json"
slipway model eval --model "$EXPORT" --data "$WORK/data/held_out.jsonl" --seq-length 128 -o json >"$WORK/exported_eval.json"
python3 - "$WORK/metrics.json" "$WORK/exported_eval.json" $MIN_LOSS_FALL <<'E2'
import json, sys
records = json.load(open(sys.argv[1]))["records"]
evals = [r["eval"] for r in records if "eval" in r]
first, last, needed = evals[0]["loss"], evals[-1]["loss"], float(sys.argv[3])
print(f"held-out loss {first:.4f} -> {last:.4f} (must fall by {needed})")
if first - last < needed:
    sys.exit("demo: the held-out loss did not fall enough")
exported = json.load(open(sys.argv[2]))["loss"]
print(f"held-out loss of the exported directory {exported:.6f}")
if abs(exported - last) > 1e-4 * max(1.0, abs(last)):
    sys.exit("demo: the exported model has another loss")
E2
curl -fsS "$METRICS" | grep -E '^slipway_(jobs|build_info)' || fail "no metrics"

say "Done"
echo "logs:      $(field output_dir)/logs"
echo "metrics:   $METRICS (while slipwayd runs), $WORK/metrics.json"
echo "model:     $EXPORT"
