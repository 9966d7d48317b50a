#!/bin/sh
# Builds the OTLP receiver of the OpenTelemetry Collector, to which tests send traces. Some minutes on two cores, once.
# usage: otlp-build.sh DIR     the program: DIR/otlp-receiver
# Exit status 2: this machine cannot build it (the reason is the last line); 1: the build failed.
set -eu
[ $# -eq 1 ] || { echo "usage: otlp-build.sh DIR"; exit 2; }
sources=$(dirname "$(realpath "$0")")/otlp_receiver
dir=$1

command -v go >/dev/null || { echo "needs Go"; exit 2; }
export GOTOOLCHAIN=local GOFLAGS=-mod=readonly CGO_ENABLED=0
(cd "$sources" && go list -m >/dev/null 2>&1) || { echo "needs $(sed -n 's/^go /Go /p' "$sources/go.mod") or newer"; exit 2; }
version=$(cat "$sources/main.go" "$sources/go.sum" | sha256sum | cut -c1-16)
[ "$(cat "$dir/version" 2>/dev/null)" = "$version" ] && [ -x "$dir/otlp-receiver" ] && exit 0
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9  # one build at a time; the second one finds it done
[ "$(cat "$dir/version" 2>/dev/null)" = "$version" ] && [ -x "$dir/otlp-receiver" ] && exit 0
echo "building the OTLP receiver: some minutes"
(cd "$sources" && go build -trimpath -ldflags "-s -w" -o "$(realpath "$dir")/otlp-receiver" .)
echo "$version" >"$dir/version"
