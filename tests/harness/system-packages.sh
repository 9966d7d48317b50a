#!/bin/sh
# Installs the Debian packages named, if any of them is missing. Root and apt are needed only then.
# Services that come with them (etcd) are not started: tests start their own.
set -eu
missing=
for package in "$@"; do
    dpkg-query --show --showformat '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get update -qq
# shellcheck disable=SC2086  # a list of packages
apt-get install -y -qq --no-install-recommends $missing >/dev/null
