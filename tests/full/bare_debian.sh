#!/usr/bin/env bash
# README's two commands on a bare Debian 12: makes a minimal root with mmdebstrap, clones this repository into it and runs
# both there. Needs root, mmdebstrap, about 25 GB below the work folder, and a network.
#
#   tests/full/bare_debian.sh [WORK_FOLDER]      default: a new folder below /var/tmp, removed at the end
#
# SLIPWAY_BARE_CCACHE=DIR lends the root a compiler cache, to test all but the compiling itself in less time.
# Certificates that this machine's administrator added, and variables that name proxies and certificates, go along.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" = 0 ] || { echo "bare_debian.sh: must run as root: it mounts /proc and /dev into the new root" >&2; exit 2; }
command -v mmdebstrap >/dev/null || { echo "bare_debian.sh: mmdebstrap is missing: apt-get install mmdebstrap" >&2; exit 2; }
work=${1:-}
if [ -z "$work" ]; then
  work=$(mktemp -d -p /var/tmp slipway-bare-XXXXXX)
  trap 'rm -rf --one-file-system "$work"' EXIT
fi
mkdir -p "$work"
root=$work/root
[ -e "$root/etc/debian_version" ] || mmdebstrap --quiet --variant=minbase bookworm "$root"
if [ -d /usr/local/share/ca-certificates ]; then cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"; fi
cp /etc/resolv.conf "$root/etc/resolv.conf"
rm -rf "$root/root/slipway"
git clone --quiet --no-hardlinks "$repository" "$root/root/slipway"

environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
while IFS= read -r variable; do environment+=("$variable"); done < <(env | grep -E -i '^([a-z_]*proxy|[a-z0-9_]*(cert|ca_bundle|ca_certs|cainfo)[a-z_]*|pip_default_timeout)=' || true)
if [ -n "${SLIPWAY_BARE_CCACHE:-}" ]; then environment+=(CCACHE_DIR=/ccache); mkdir -p "$root/ccache"; fi

# Mounts live in a namespace of their own: they end with it.
SLIPWAY_ROOT=$root unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
  mount -t proc proc "$SLIPWAY_ROOT/proc"
  mount --rbind /dev "$SLIPWAY_ROOT/dev"
  if [ -n "${SLIPWAY_BARE_CCACHE:-}" ]; then mount --bind "$SLIPWAY_BARE_CCACHE" "$SLIPWAY_ROOT/ccache"; fi
  exec chroot "$SLIPWAY_ROOT" env -i "$@" bash -euo pipefail -c "cd /root/slipway; time scripts/demo.sh; time scripts/test.sh"
' bare "${environment[@]}"
echo "bare_debian.sh: both commands passed on Debian $(cat "$root/etc/debian_version")"
