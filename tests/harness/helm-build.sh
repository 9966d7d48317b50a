#!/bin/sh
# Builds helm, with which tests render the chart. Some minutes on two cores, once.
# usage: helm-build.sh DIR     the program: DIR/helm
# Exit status 2: this machine cannot build it (the reason is the last line); 1: the build failed.
set -eu
[ $# -eq 1 ] || { echo "usage: helm-build.sh DIR"; exit 2; }
version=v3.12.3  # the newest one that Debian bookworm's Go builds
dir=$1

[ "$(cat "$dir/version" 2>/dev/null)" = "$version" ] && [ -x "$dir/helm" ] && exit 0
PATH="/usr/lib/go-1.19/bin:$PATH"
export PATH GOTOOLCHAIN=local CGO_ENABLED=0
command -v go >/dev/null || { echo "needs Go (Debian: golang-1.19-go)"; exit 2; }
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9  # one build at a time; the second one finds it done
[ "$(cat "$dir/version" 2>/dev/null)" = "$version" ] && [ -x "$dir/helm" ] && exit 0
echo "building helm: some minutes"
GOBIN=$(realpath "$dir")
export GOBIN
go install -trimpath -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@$version"
echo "$version" >"$dir/version"
