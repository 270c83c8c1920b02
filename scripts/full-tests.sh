#!/usr/bin/env bash
# The fast suite, the sweeps that need the Python reference (transformers and friends, about 3 GB in .deps/pyref), and the
# two commands of the README on a bare Debian 12 (as root, with mmdebstrap; about 25 GB).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --full
scripts/test.sh
failed=0
for script in tests/full/*.py; do
  echo "== $script"
  SLIPWAY_BIN_DIR=$PWD/build/release/bin .deps/pyref/bin/python "$script" || failed=1
done
echo "== tests/full/bare_debian.sh"
tests/full/bare_debian.sh || failed=1
exit $failed
