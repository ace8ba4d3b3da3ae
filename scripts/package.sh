#!/usr/bin/env bash
# Makes packages in dist/, with their checksums in SHA256SUMS: deb and wheel contain only the launcher; worker-wheel contains the worker, the
# library and its headers, to be installed next to PyTorch's torch wheel of the same minor version. The wheel's build tools need a network.
#
# usage: scripts/package.sh [deb] [wheel] [worker-wheel]      (default: all)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

package_deb() {
  scripts/build.sh --portable
  cpack --config build-portable/CPackConfig.cmake -B build-portable/packages >&2
  cp build-portable/packages/*.deb dist/
}

package_wheel() {
  python3 -m pip wheel --no-deps --wheel-dir dist . >&2 || die "could not make a wheel of ddprun"
}

package_worker-wheel() {
  scripts/build.sh --programs
  python3 packaging/worker_wheel.py build dist >&2
}

[ $# -gt 0 ] || set -- deb wheel worker-wheel
for kind in "$@"; do
  case $kind in
    deb | wheel | worker-wheel) ;;
    --help | -h) usage ;;
    *) say "error: unknown package '$kind', expected deb, wheel or worker-wheel"; exit 2 ;;
  esac
done

cd "$root"
mkdir -p dist
for kind in "$@"; do step "packaging ($kind)" "package_$kind"; done
cd dist
sha256sum -- *.deb *.whl 2>/dev/null >SHA256SUMS || true # there may be none of a kind
