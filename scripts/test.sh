#!/usr/bin/env bash
# Sets up, builds and runs the fast test suite: every test but those labelled gpu or full.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh release
# Ranks of one test share the cores: two tests at a time at most.
OMP_NUM_THREADS=1 ctest --preset release -j "$(nproc)" "$@"
