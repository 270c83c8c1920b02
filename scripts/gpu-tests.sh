#!/usr/bin/env bash
# Builds the GPU tests and runs them on this machine's GPUs, or makes a bundle that another machine with GPUs can run.
#
#   scripts/gpu-tests.sh                  build, run, write the verdicts into docs/gpu-results.json
#   scripts/gpu-tests.sh --bundle DIR     build, and copy what is needed to DIR: DIR/run.sh [RESULTS.json] runs it there,
#                                         from a copy of this tree
#
# Tests of label gpu need one GPU, those of gpu2 two; on a machine with one GPU the latter keep their old verdicts.
# The other machine needs a driver and Python's torch of the same version (for the CUDA libraries), nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
BUNDLE=
[ "${1:-}" = --bundle ] && BUNDLE=${2:?a directory}
BUILD=${SLIPWAY_BUILD_DIR:-build/release}
PROGRAMS="slipway slipwayd slipway-agent slipway-shim slipway-worker"
tests_of() { ctest --test-dir "$BUILD" -N -L "^$1\$" 2>/dev/null | awk '/Test +#/ {print $3}'; }
ONE=$(tests_of gpu)
TWO=$(tests_of gpu2)
[ -n "$ONE" ] || { echo "gpu-tests: no test has the label gpu in $BUILD; build first" >&2; exit 1; }
ninja -C "$BUILD" slipway_cuda $ONE $TWO $PROGRAMS >/dev/null

bundle() {
  local dir=$1 binary
  rm -rf "$dir"
  mkdir -p "$dir/bin" "$dir/lib" "$dir/syslib"
  cp "$BUILD/lib/libslipway_cuda.so" "$dir/lib/"
  for binary in $ONE $TWO $PROGRAMS; do cp "$BUILD/bin/$binary" "$dir/bin/"; done
  # Libraries of this machine that are neither torch's nor the C library's.
  for binary in "$dir"/bin/*; do ldd "$binary"; done | awk '/=> \/(usr\/)?lib/ {print $3}' | sort -u |
    grep -vE '/(libc|libm|libutil|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux.*)\.so' | xargs -r cp -Lt "$dir/syslib"
  strip "$dir"/bin/* "$dir"/lib/* 2>/dev/null || true
  echo "$ONE" >"$dir/one_gpu"
  echo "$TWO" >"$dir/two_gpus"
  cp scripts/gpu-run-bundle.sh "$dir/run.sh"
  git rev-parse HEAD >"$dir/commit"
}

if [ -n "$BUNDLE" ]; then
  bundle "$BUNDLE"
  du -sh "$BUNDLE"
else
  dir=$(mktemp -d)
  bundle "$dir"
  "$dir/run.sh" docs/gpu-results.json
  rm -rf "$dir"
fi
