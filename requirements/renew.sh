#!/bin/sh
# Writes the lock files from pyproject.toml. Needs uv (`pip install uv`) and a package index.
# With KEEP=1 only what is new or no longer fits gets another version; without it everything gets the newest one.
set -eu
cd "$(dirname "$0")/.."
upgrade=--upgrade
[ -z "${KEEP:-}" ] || upgrade=
compile() {
    target=$1
    shift
    uv pip compile --quiet --universal --generate-hashes $upgrade --python-version 3.10 --no-header --no-annotate \
        --output-file "requirements/$target" pyproject.toml "$@"
}
compile node.txt
compile node-etcd.txt --extra etcd
compile node-orch.txt --extra orch
compile node-routes.txt --extra routes
nodes="--constraint requirements/node-etcd.txt --constraint requirements/node-orch.txt --constraint requirements/node-routes.txt"
# shellcheck disable=SC2086  # a list of options
compile ci.txt $nodes --group test --group lint --group bench
compile wheels.txt --group wheels
compile hosted.txt --group hosted
