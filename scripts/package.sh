#!/usr/bin/env bash
# Makes a Debian package and a Python wheel of the launcher alone, in dist/. The wheel's build tools need a network.
#
# usage: scripts/package.sh [deb] [wheel]      (default: both)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

package_deb() {
  scripts/build.sh --portable
  cpack --config build-portable/CPackConfig.cmake -B build-portable/packages >&2
  cp build-portable/packages/*.deb dist/
}

package_wheel() {
  python3 -m pip wheel --no-deps --wheel-dir dist . >&2 || die "could not make a wheel of ddprun"
}

[ $# -gt 0 ] || set -- deb wheel
for kind in "$@"; do
  case $kind in
    deb | wheel) ;;
    --help | -h) usage ;;
    *) say "error: unknown package '$kind', expected deb or wheel"; exit 2 ;;
  esac
done

cd "$root"
mkdir -p dist
for kind in "$@"; do step "packaging ($kind)" "package_$kind"; done
