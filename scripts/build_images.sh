#!/usr/bin/env bash
# Builds the images with docker, podman or buildah, whichever is here. `make images` calls it.
#
#     scripts/build_images.sh [--archives FOLDER] [operator] [control] [worker]
#
# --archives also writes each image as FOLDER/NAME.tar (docker-archive), for clusters that pull from nowhere.
# Environment: ACCELERATOR=cuda|cpu (cuda), BASE_IMAGE (the Dockerfiles' own), TRIMTAB_IMAGE_PREFIX
# (localhost/trimtab), TRIMTAB_IMAGE_TAG (dev), BUILDER=docker|podman|buildah, SOURCE_DATE_EPOCH.
# Packages come from where this machine's pip takes them; nothing of that stays in an image.
set -euo pipefail
cd "$(dirname "$0")/.."

PREFIX=${TRIMTAB_IMAGE_PREFIX:-localhost/trimtab}
TAG=${TRIMTAB_IMAGE_TAG:-dev}
# One moment for all builds: layers whose content is the same are the same bytes.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600}

fail() {
  printf 'images: %s\n' "$*" >&2
  exit 1
}

builder() {
  if [ -n "${BUILDER:-}" ]; then echo "$BUILDER"
  elif docker info >/dev/null 2>&1; then echo docker
  elif command -v podman >/dev/null; then echo podman
  elif command -v buildah >/dev/null; then echo buildah
  else fail "none of docker (with its daemon), podman and buildah is here"
  fi
}

archives=
images=()
while [ $# -gt 0 ]; do
  case $1 in
    --archives) archives=${2:?--archives needs a folder}; shift ;;
    operator | control | worker) images+=("$1") ;;
    *) fail "unknown argument '$1'; images are operator, control and worker" ;;
  esac
  shift
done
[ ${#images[@]} -gt 0 ] || images=(operator control worker)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python
folders=$("$python" scripts/pip_settings.py "$work")

tool=$(builder)
options=(--secret "id=pip.conf,src=$work/pip.conf")
[ -f "$work/ca.crt" ] && options+=(--secret "id=ca.crt,src=$work/ca.crt")
[ -n "${BASE_IMAGE:-}" ] && options+=(--build-arg "BASE_IMAGE=$BASE_IMAGE")
case $tool in
  docker)
    [ -z "$folders" ] || fail "docker cannot mount the folders that pip's settings name ($folders); use buildah or podman"
    options+=(--build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")
    ;;
  podman | buildah)
    options+=(--layers --timestamp "$SOURCE_DATE_EPOCH" --format oci)
    for folder in $folders; do options+=(--volume "$folder:$folder:ro"); done
    ;;
  *) fail "BUILDER is '$tool'; allowed are docker, podman and buildah" ;;
esac

for image in "${images[@]}"; do
  name=$PREFIX/$image:$TAG
  printf 'images: building %s with %s\n' "$name" "$tool"
  variant=()
  [ "$image" = worker ] && variant=(--build-arg "ACCELERATOR=${ACCELERATOR:-cuda}")
  "$tool" build "${options[@]}" "${variant[@]}" --file "images/$image/Dockerfile" --tag "$name" .
  if [ -n "$archives" ]; then
    mkdir -p "$archives"
    rm -f "$archives/$image.tar"
    case $tool in
      docker) docker save --output "$archives/$image.tar" "$name" ;;
      podman) podman save --format docker-archive --output "$archives/$image.tar" "$name" ;;
      buildah) buildah push --quiet "$name" "docker-archive:$archives/$image.tar:$name" ;;
    esac
  fi
done
