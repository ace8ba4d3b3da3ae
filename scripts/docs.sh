#!/usr/bin/env bash
# Builds the documentation as a site into build/site, with mkdocs-material from docs/requirements.txt, which is kept in the
# cache folder. A dead link is an error. Exits with 4 if the packages are unavailable, such as without a network. With
# doxygen, a reference of the library goes into build/site/api.
#
# usage: scripts/docs.sh [--serve]      --serve shows the pages at http://127.0.0.1:8000 and follows changes
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

serve=no
for argument in "$@"; do
  case $argument in
    --serve) serve=yes ;;
    --help | -h) usage ;;
    *) say "error: unknown argument '$argument', expected --serve"; exit 2 ;;
  esac
done

folder=$cache/docs-$(sha256sum <"$root/docs/requirements.txt" | cut -c1-12)
skip() { say "skipped: $*"; exit 4; }

install_packages() {
  mkdir -p "$cache"
  rm -rf "$cache"/docs-*
  say "installing mkdocs-material (140 MB) into $folder"
  python3 -m venv --without-pip "$folder" || skip "no venv for Python: apt-get install python3-venv"
  python3 -m pip --python "$folder/bin/python" --disable-pip-version-check install --quiet --retries 2 --no-deps \
    --only-binary=:all: --requirement "$root/docs/requirements.txt" >&2 || skip "docs/requirements.txt cannot be installed (no network?)"
  touch "$folder/complete"
}

[ -e "$folder/complete" ] || install_packages
cd "$root"
export NO_MKDOCS_2_WARNING=1
mkdocs=("$folder/bin/python" -m mkdocs)  # its script would name the folder that the cache once had
if [ "$serve" = yes ]; then exec "${mkdocs[@]}" serve; fi
"${mkdocs[@]}" build --strict
if command -v doxygen >/dev/null; then
  doxygen docs/Doxyfile
  sed -i 's|<code>build/site/api/index.html</code>|<a href="api/index.html">the reference</a>|' build/site/runtime.html
  say "built build/site/api/index.html, the reference of the library"
else
  say "no reference of the library: doxygen is not installed"
fi
say "built build/site/index.html"
