#!/bin/sh
# Builds kustomize 2.0.3, the one of kubectl before 1.21, with which tests read the folders. Some minutes on two cores, once.
# usage: kustomize-build.sh DIR     the program: DIR/kustomize
# Exit status 2: this machine cannot build it (the reason is the last line); 1: the build failed.
set -eu
[ $# -eq 1 ] || { echo "usage: kustomize-build.sh DIR"; exit 2; }
version=v2.0.3
dir=$1

[ "$(cat "$dir/version" 2>/dev/null)" = "$version" ] && [ -x "$dir/kustomize" ] && exit 0
PATH="$PATH:/usr/lib/go-1.19/bin"
export PATH GOTOOLCHAIN=local CGO_ENABLED=0
command -v go >/dev/null || { echo "needs Go (Debian: golang-1.19-go)"; exit 2; }
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9  # one build at a time; the second one finds it done
[ "$(cat "$dir/version" 2>/dev/null)" = "$version" ] && [ -x "$dir/kustomize" ] && exit 0
echo "building kustomize: some minutes"
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
target=$(realpath "$dir")/kustomize
# This release is older than go.mod: its libraries are those that kubectl 1.20 has with it. Newer ones of cobra need a newer Go,
# and older ones of reflect2 corrupt maps under Go >= 1.18.
cat >"$sources/go.mod" <<EOF
module kustomize-build
go 1.19
require (
	github.com/modern-go/reflect2 v1.0.2
	github.com/spf13/cobra v1.1.1
	k8s.io/api v0.20.15
	k8s.io/apimachinery v0.20.15
	k8s.io/client-go v0.20.15
	sigs.k8s.io/kustomize $version+incompatible
)
EOF
name=sigs.k8s.io/kustomize/pkg/commands/misc.kustomizeVersion
(cd "$sources" && go build -mod=mod -trimpath -ldflags "-s -w -X $name=$version" -o "$target" sigs.k8s.io/kustomize)
echo "$version" >"$dir/version"
