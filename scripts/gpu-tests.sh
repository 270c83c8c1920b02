#!/usr/bin/env bash
# Builds the GPU tests and runs them on this machine's GPUs, or makes a bundle that another machine with a GPU can run.
#
#   scripts/gpu-tests.sh                  build, run, write docs/gpu-results.json
#   scripts/gpu-tests.sh --bundle DIR     build, and copy what is needed to DIR: DIR/run.sh [RESULTS.json] runs it there
#
# The other machine needs a driver and Python's torch of the same version (for the CUDA libraries), nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
BUNDLE=
[ "${1:-}" = --bundle ] && BUNDLE=${2:?a directory}
BUILD=${SLIPWAY_BUILD_DIR:-build/release}
TESTS=$(ctest --test-dir "$BUILD" -N -L '^gpu$' 2>/dev/null | awk '/Test +#/ {print $3}')
[ -n "$TESTS" ] || { echo "gpu-tests: no test has the label gpu in $BUILD; build first" >&2; exit 1; }
ninja -C "$BUILD" slipway_cuda $TESTS >/dev/null

bundle() {
  local dir=$1 binary
  rm -rf "$dir"
  mkdir -p "$dir/bin" "$dir/lib" "$dir/syslib"
  cp "$BUILD/lib/libslipway_cuda.so" "$dir/lib/"
  for test in $TESTS; do cp "$BUILD/bin/$test" "$dir/bin/"; done
  # Libraries of this machine that are neither torch's nor the C library's.
  for binary in "$dir"/bin/*; do ldd "$binary"; done | awk '/=> \/(usr\/)?lib/ {print $3}' | sort -u |
    grep -vE '/(libc|libm|libutil|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux.*)\.so' | xargs -r cp -Lt "$dir/syslib"
  strip "$dir"/bin/* 2>/dev/null || true
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
