#!/bin/sh
# Renews the lock files from pyproject.toml. Needs uv (`pip install uv`) and a package index.
set -eu
cd "$(dirname "$0")/.."
compile() {
    target=$1
    shift
    uv pip compile --quiet --universal --generate-hashes --upgrade --python-version 3.10 --no-header --no-annotate \
        --output-file "requirements/$target" pyproject.toml "$@"
}
compile node.txt
compile node-etcd.txt --extra etcd
compile node-orch.txt --extra orch
compile ci.txt --group test --group lint --group bench
