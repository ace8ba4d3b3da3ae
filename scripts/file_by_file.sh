#!/usr/bin/env bash
# Compiles part of the product's files and public headers one by one, because a unity build hides a missing #include. Each
# commit compiles another part: after PARTS commits in a row every file has been compiled.
#
# usage: scripts/file_by_file.sh [PARTS; 16]      (1: all files)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

cd "$root"
parts=${1:-16}
turn=$(($(git rev-list --count HEAD) % parts))
step "configuring (file by file)" cmake --preset release -B build-files -DDDPRUN_UNITY=OFF -DDDPRUN_TESTS=OFF -DDDPRUN_WERROR=ON
objects=$(ninja -C build-files -t targets all | sed -n 's/^\(.*\.cpp\.o\): .*/\1/p' | awk "NR % $parts == $turn")
step "compiling part $((turn + 1)) of $parts" xargs -r ninja -C build-files -j "$(jobs)" <<<"$objects" >&2
