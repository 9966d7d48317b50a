#!/bin/sh
# Installs the Debian packages named, if any of them is missing. Root and apt are needed only then.
set -eu
missing=
for package in "$@"; do
    dpkg-query --show --showformat '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086  # a list of packages
apt-get install -y -qq --no-install-recommends $missing >/dev/null
