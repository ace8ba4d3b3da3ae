#!/usr/bin/env bash
# Formats the C++ files with clang-format 14; with --check it only names the files that differ.
#
# usage: scripts/format.sh [--check]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

cd "$root"
mode=-i
if [ "${1:-}" = --check ]; then mode='--dry-run -Werror'; fi
formatter=$(command -v clang-format-14 || command -v clang-format) || die "clang-format is missing: run scripts/setup.sh --dev"
# shellcheck disable=SC2086
git ls-files '*.h' '*.cpp' | xargs "$formatter" $mode
