#!/bin/sh
# Removes from a new root file system what no program of the image needs. Licences remain, and what dpkg records stays true.
# usage: trim-base.sh ROOT     as a hook of mmdebstrap
set -eu
root=$1

# perl came for the move of files to /usr, which is done
unneeded=$(chroot "$root" dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' \
    usrmerge perl 'perl-modules-*' 'libperl5.*' 'libgdbm*' 'lib*-perl' 2>/dev/null | sed -n 's/^installed //p')
# shellcheck disable=SC2086  # a list of packages
chroot "$root" dpkg --purge $unneeded >/dev/null

find "$root" -xdev -type f -perm /6000 -exec chmod ug-s {} +
cd "$root/usr/share"
rm -rf locale i18n man info lintian bug
find doc -mindepth 2 -not -name copyright -not -type d -delete  # packages that share a folder have links at the top
find doc -type d -empty -delete
cd "$root"
rm -rf usr/lib/*/gconv var/lib/apt var/cache/* var/log/* var/lib/dpkg/*-old var/lib/dpkg/info/*.md5sums
rm -rf usr/lib/python3*/pydoc_data usr/lib/python3*/test usr/lib/python3*/turtledemo
: >etc/machine-id  # where the machine's own one is mounted

# Compiled files without the time of their source, because the image changes the times of files
chroot "$root" sh -c 'for folder in /usr/lib/python3.*; do
    find "$folder" -name "*.pyc" -delete
    python3 -m compileall -q -f --invalidation-mode unchecked-hash "$folder"
done'
