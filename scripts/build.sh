#!/usr/bin/env bash
# Configures and builds a preset: scripts/build.sh [release|dev|asan|tsan] [ninja targets...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
cmake --preset "$preset" >/dev/null
# A torch compile takes about 1.5 GB: never more jobs than memory carries.
jobs=$(nproc)
by_memory=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 2000000))
[ "$by_memory" -lt "$jobs" ] && jobs=$by_memory
[ "$jobs" -lt 1 ] && jobs=1
ninja -C "build/$preset" -j "$jobs" "$@"
