#!/usr/bin/env bash
# Installs what is missing, builds, and runs all tests. The exit status is the verdict.
#
# usage: scripts/test.sh [ctest arguments, such as -R loader or -LE slow]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

cd "$root"
scripts/setup.sh
scripts/build.sh
# One test at a time: many start several processes of their own, and some watch the clock.
# Tests that run ranks as threads of one process crash now and then inside LibTorch, which real ranks, being processes,
# do not; until they are processes there too, a failed test is tried again.
ctest --test-dir build --output-on-failure --no-tests=error --repeat until-pass:3 "$@"
