#!/usr/bin/env bash
# Builds the library and its tests with another LibTorch, in a separate build folder, and runs the tests of DistributedDataParallel,
# groups and sharding. Exits with 4 if that version is unavailable, such as without a network.
#
# usage: scripts/try_libtorch.sh [--fetch|--build] VERSION|FOLDER [ctest arguments]
#   --fetch  only fetches VERSION; scripts/setup.sh --python does so for the tests that compare with the newest PyTorch
#   --build  only builds
#   VERSION  such as 2.13.0: its CPU wheel is fetched into the cache folder (200 MB, or 550 where only the package index is; 1.2 GB unpacked;
#            with the newest one 400 MB more, for its Python part)
#   FOLDER   an unpacked libtorch, or the torch folder of an environment
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

only_fetch=no only_build=no
case ${1:-} in
  --fetch) only_fetch=yes && shift ;;
  --build) only_build=yes && shift ;;
esac
case ${1:-} in
  --help | -h) usage ;;
  "") say "error: expected a version, such as 2.13.0, or a folder with LibTorch"; exit 2 ;;
esac

# download FOLDER REQUIREMENT...: wheels, without their requirements.
download() {
  TMPDIR=$1 python3 -m pip download --no-cache-dir --disable-pip-version-check --no-deps --only-binary=:all: --quiet --retries 1 --dest "$@" >&2
}

# fetch VERSION: PyTorch's wheel for the CPU, or else the package index's own, whose CPU libraries need two of NVIDIA's. The Python
# part of the newest one is for the tests, and loads more of them, most of which are in their Python.
fetch() {
  local folder=$cache/libtorch-cpu-$1 needs=("nvidia-cuda-cupti==13.*" "nvidia-cuda-runtime==13.*") work wheel
  [ "$1" != "$newest_torch_version" ] || needs+=("${newest_torch_needs[@]}")
  mkdir -p "$cache"
  exec 9>"$cache/setup.lock"
  flock 9 # a setup removes downloads that a killed one left
  if [ ! -e "$folder/complete" ] || [ ! -e "$folder/torch/__init__.py" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    work=$(mktemp -d "$cache/download.XXXXXX")
    # shellcheck disable=SC2064 # the name is local
    trap "rm -rf '$work'" EXIT
    say "downloading LibTorch $1 for the CPU into $folder"
    download "$work" --index-url https://download.pytorch.org/whl/cpu "torch==$1" 2>/dev/null ||
      download "$work" "torch==$1" "${needs[@]}" ||
      { rm -rf "$folder"; say "skipped: no torch $1 to be had"; exit 4; }
    for wheel in "$work"/*.whl; do
      unzip -qo "$wheel" 'torch/*' 'torchgen/*' 'functorch/*' 'nvidia/*/lib/*' 'torch-*.dist-info/*' -d "$folder" \
        2> >(grep -v 'filename not matched' >&2) ||
        [ $? = 11 ] # no file of one of these patterns
    done
    touch "$folder/complete"
  fi
  exec 9>&-
  echo "$folder/torch"
}

where=$1
shift
if [ ! -d "$where" ]; then
  [[ $where =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { say "error: expected a version, such as 2.13.0, or a folder, got '$where'"; exit 2; }
  where=$(fetch "$where")
fi
where=$(cd "$where" && pwd)
[ "$only_fetch" = no ] || exit 0
header=$where/include/torch/headeronly/version.h
[ -e "$header" ] || die "$where: no $header: expected LibTorch 2.11 or later"
version=$(sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\) //p' "$header" | paste -sd.)

cd "$root"
build=build-libtorch-$version
# What is tried is LibTorch: with less optimisation of ours it is there sooner.
step "configuring ($build)" cmake --preset release -B "$build" -DCMAKE_PREFIX_PATH="$where" -DLibTorch_ALSO_TRY="$version" \
  -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
  -DDDPRUN_WERROR="$([ -z "${CI:-}" ] && echo OFF || echo ON)" >&2
step "building ($build)" cmake --build "$build" -j "$(jobs)" --target worker ddprun_ddp_tests >&2
[ "$only_build" = no ] || exit 0
[ $# -gt 0 ] || set -- -R '^ddprun_ddp_tests:'
step "testing ($build)" run_ctest "$build" "$@"
