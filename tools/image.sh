#!/bin/sh
# Builds the image of svc without a container engine and without a registry, see docs/image.md.
# usage: image.sh FOLDER     writes FOLDER/oci (an OCI layout) and FOLDER/svc-VERSION.tar (as `docker save` writes it)
# Variables:
#   IMAGE_CACHE          where the base image and downloaded wheels are kept
#   BASE                 the name of another base image, as buildah finds it, such as docker-archive:/tmp/base.tar
#   PYTHON               the Python that builds the wheel: of the same version as that of the base image
#   SOURCE               the address of the sources, for the label of that name
#   SOURCE_DATE_EPOCH    the time of all files, in seconds
# Exit status 2: this machine cannot build it (the reason is the last line); 1: the build failed.
set -eu
[ $# -eq 1 ] || { echo "usage: image.sh FOLDER"; exit 2; }
top=$(cd "$(dirname "$0")/.." && pwd)
cache=${IMAGE_CACHE:-/var/cache/svc-tests}/image
python=${PYTHON:-$top/.venv/bin/python}
python=$(command -v "$python") || { echo "needs Python: ${PYTHON:-$top/.venv/bin/python} does not exist"; exit 2; }
source=${SOURCE:-https://pypi.org/project/svc-cni}
: "${SOURCE_DATE_EPOCH:=$(git -C "$top" log -1 --format=%ct 2>/dev/null || echo 315532800)}"
export SOURCE_DATE_EPOCH LC_ALL=C PYTHONHASHSEED=0
umask 022

cannot() { echo "$1"; exit 2; }
digest() { sha256sum | cut -c1-16; }
say() { echo "$(($(date +%s) - began)) s: $1"; }
began=$(date +%s)

[ "$(id -u)" = 0 ] || cannot "needs root: it makes a root file system and mounts"
command -v buildah >/dev/null || cannot "needs buildah (Debian: buildah)"
mkdir -p "$cache" "$1"
folder=$(cd "$1" && pwd)
work=$(mktemp -d "$cache/build.XXXXXX")
image_tool() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }
trap 'image_tool rm --all >/dev/null 2>&1 || :; rm -rf "$work"' EXIT
exec 9>"$cache/.lock"
flock 9  # one build at a time: the second one finds what the first one has cached

# The base: the essential packages of this machine's release, Python and nftables, without documentation and translations.
. /etc/os-release
packages="python3,nftables,libstdc++6,usr-is-merged"  # the C++ library is for gRPC
make_base() {
    command -v mmdebstrap >/dev/null || cannot "needs mmdebstrap (Debian: mmdebstrap), or another base image in BASE"
    [ -n "${VERSION_CODENAME:-}" ] || cannot "needs Debian or Ubuntu, or another base image in BASE"
    sources=$(grep -lE "^(deb |Suites:)(.* )?$VERSION_CODENAME( |\$)" /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || :)
    [ -n "$sources" ] || cannot "needs a source of packages of $VERSION_CODENAME in /etc/apt, or another base image in BASE"
    key=$(printf '%s\n' "$VERSION_CODENAME" "$packages" "$(cat "$top/tools/trim-base.sh")" | digest)
    base_archive=$cache/base-$VERSION_CODENAME-$key.tar
    [ -s "$base_archive" ] && return
    say "packages of $VERSION_CODENAME"
    # shellcheck disable=SC2086  # a list of files
    mmdebstrap --quiet --mode=root --variant=essential --format=tar --include="$packages" \
        --customize-hook="$top/tools/trim-base.sh" \
        "$VERSION_CODENAME" "$base_archive.new" $sources
    mv "$base_archive.new" "$base_archive"
}
if [ -n "${BASE:-}" ]; then
    base=$BASE
else
    make_base
    base=localhost/$ID:$VERSION_CODENAME
    say "base image"
    container=$(image_tool from scratch)
    image_tool add --quiet "$container" "$base_archive" / >/dev/null
    image_tool commit --quiet --timestamp "$SOURCE_DATE_EPOCH" --rm "$container" "$base" >/dev/null
fi

# What svc needs, with the hashes of the lock files. One distribution has no wheel, so it is built.
pip() { "$python" -m pip --quiet --disable-pip-version-check "$@"; }
locks="$top/requirements/node-etcd.txt $top/requirements/node-orch.txt $top/requirements/node-routes.txt"
# shellcheck disable=SC2086  # a list of files
wheels=$cache/wheels-$({ cat $locks; "$python" -VV; uname -m; } | digest)
if [ ! -d "$wheels" ]; then
    say "wheels of the lock files"
    # shellcheck disable=SC2046,SC2086
    pip wheel --require-hashes --no-deps --only-binary :all: --no-binary etcd3 --no-build-isolation --wheel-dir "$work/wheels" \
        $(printf -- '--requirement %s ' $locks)
    mv "$work/wheels" "$wheels"
fi
say "wheel of svc"
mkdir -p "$work/context/wheels"
pip wheel --no-deps --no-build-isolation --wheel-dir "$work/context/wheels" "$top"
version=$(basename "$work"/context/wheels/svc_cni-*.whl | cut -d- -f2)
cp "$wheels"/*.whl "$work/context/wheels"
# Only the part of the Kubernetes client that svc does not use needs these. The Containerfile removes that part.
for name in aiohttp aiohttp_retry aiohappyeyeballs aiosignal frozenlist multidict propcache yarl; do
    rm -f "$work/context/wheels/$name"-*.whl
done
mkdir "$work/context/installer"
cp -r "$("$python" -c 'import os, pip; print(os.path.dirname(pip.__file__))')" "$work/context/installer/pip"

say "image svc:$version"
image_tool bud --quiet --isolation chroot --network host --pull=false --layers=false --timestamp "$SOURCE_DATE_EPOCH" \
    --build-arg BASE="$base" --build-arg VERSION="$version" --build-arg SOURCE="$source" \
    --annotation org.opencontainers.image.version="$version" --annotation org.opencontainers.image.source="$source" \
    --annotation org.opencontainers.image.licenses=Apache-2.0 --annotation org.opencontainers.image.title=svc \
    --file "$top/deploy/Containerfile" --tag "svc:$version" "$work/context" >/dev/null
rm -rf "$folder/oci" "$folder/svc-$version.tar"
say "archives"
image_tool push --quiet "svc:$version" "oci:$folder/oci:svc:$version"
image_tool push --quiet "svc:$version" "docker-archive:$folder/svc-$version.tar:docker.io/library/svc:$version"
say "svc:$version is in $folder: $(grep -o 'sha256:[0-9a-f]*' "$folder/oci/index.json")"
