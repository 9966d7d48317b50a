#!/bin/sh
# Fails unless the executables in the wheels given are static ELF files of at most 64 KB.
set -eu
for wheel in "$@"; do
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT
    python3 -m zipfile -e "$wheel" "$directory"
    for name in svc svc-ipam; do
        file=$(find "$directory" -path "*.data/scripts/$name")
        [ -n "$file" ] || { echo "$wheel: no $name in its scripts"; exit 1; }
        [ "$(head -c 4 "$file" | od -An -tx1 | tr -d ' ')" = 7f454c46 ] || { echo "$wheel: $name is no ELF file"; exit 1; }
        if readelf -l "$file" | grep -q INTERP; then echo "$wheel: $name is not static"; exit 1; fi
        size=$(wc -c <"$file")
        [ "$size" -le 65536 ] || { echo "$wheel: $name has $size bytes"; exit 1; }
        echo "$wheel: $name is static, $size bytes"
    done
done
