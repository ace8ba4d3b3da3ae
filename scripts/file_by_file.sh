#!/usr/bin/env bash
# Compiles part of the product's files and public headers one by one, because a unity build hides a missing #include: the FILEs that
# changed (of a header, the source of its name and the header as a user includes it), and with each commit another part of all: after PARTS
# commits in a row every file has been compiled.
#
# usage: scripts/file_by_file.sh [PARTS; 16] [FILE...]      (1: all files)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

cd "$root"
parts=${1:-16}
shift $(($# > 0 ? 1 : 0))
turn=$(($(git rev-list --count HEAD) % parts))
step "configuring (file by file)" cmake --preset release -B build-files -DDDPRUN_UNITY=OFF -DDDPRUN_TESTS=OFF -DDDPRUN_WERROR=ON
all=$(ninja -C build-files -t targets all | sed -n 's/^\(.*\.cpp\.o\): .*/\1/p')
# An object's name has its target's folder within that of its source. A public header's is that of its path, in tests/public_headers.
objects=$(awk "NR % $parts == $turn" <<<"$all" && for file in "$@"; do
  source=${file%.*}.cpp header=${file#*/ddprun/}
  header=${header//[^A-Za-z0-9]/_}
  awk -v source="$source" -v header="/$header.cpp.o" \
    '{ path = $0; sub(/CMakeFiles\/[^\/]*\.dir\//, "", path)
       if (path == source ".o" || index($0, "public_headers") && substr($0, length($0) - length(header) + 1) == header) print }' <<<"$all"
done)
objects=$(sort -u <<<"$objects")
step "compiling part $((turn + 1)) of $parts and $# changed files" xargs -r ninja -C build-files -j "$(jobs)" <<<"$objects" >&2
