#!/usr/bin/env bash
# Runs tests/cluster in a two-node cluster that this machine starts, with images built here.
#
#     scripts/cluster_tests.sh CLUSTER [pytest arguments]
#
# CLUSTER is a command that starts a whole Kubernetes on one Linux machine. Wants root and Debian's packages,
# which it installs; where they or the cluster cannot be had it says so and runs nothing. For other clusters:
# docs/cluster-tests.md.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=${1:?the command that starts a cluster}
shift

skip() {
  printf 'cluster tests SKIPPED: %s\n' "$*" >&2
  exit 0
}

[ "$(id -u)" = 0 ] || skip "a cluster with nodes needs root"
command -v apt-get >/dev/null || skip "the packages that a cluster needs are Debian's"

work=$(mktemp -d)
finish() {
  "$cluster" down
  rm -rf "$work"
}
trap finish EXIT
"$cluster" down # what a run that was cut off has left

packages=(nftables iptables ipset iproute2 openssl buildah debootstrap)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  { apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; } \
    || skip "these packages cannot be installed: ${packages[*]}"
fi

export BUILDER=buildah BUILDAH_ISOLATION=chroot ACCELERATOR=cpu BASE_IMAGE=localhost/trimtab-base:tests
export TRIMTAB_IMAGE_PREFIX=localhost/trimtab TRIMTAB_IMAGE_TAG=dev
buildah inspect --type image "$BASE_IMAGE" >/dev/null 2>&1 || "$cluster" base-image "$BASE_IMAGE" \
  || skip "no base image can be made"
scripts/build_images.sh --archives "$work"

PATH="$("$cluster" assets):$PATH"
KUBECONFIG=$("$cluster" up --nodes 2 --gpus 8 --node-loss-s 10 --eviction-s 5) || skip "the cluster does not start"
export PATH KUBECONFIG
for image in operator control worker; do
  "$cluster" load "$work/$image.tar"
  rm "$work/$image.tar"
done

export TRIMTAB_STOP_NODE="$cluster stop-node" TRIMTAB_START_NODE="$cluster start-node"
export TRIMTAB_RESTART_API_SERVER="$cluster restart kube-apiserver"
make test-cluster PYTEST_ARGS="$*"
