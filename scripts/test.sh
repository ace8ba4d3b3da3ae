#!/usr/bin/env bash
# Installs missing packages, builds, and runs all tests. The exit status is the verdict; skipped tests and reasons come last.
#
# usage: scripts/test.sh [ctest arguments, such as -R loader or -LE slow]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

cd "$root"
scripts/setup.sh
scripts/build.sh
run_ctest build "$@"
