#!/usr/bin/env bash
# Builds the library and its tests with another LibTorch, in a separate build folder, and runs the tests of DistributedDataParallel,
# groups and sharding. Exits with 4 if that version is unavailable, such as without a network.
#
# usage: scripts/try_libtorch.sh [--build] VERSION|FOLDER [ctest arguments]
#   --build  only builds
#   VERSION  such as 2.13.0: its CPU wheel is fetched into the cache folder (200 MB, or 550 where only the package index is; 1 GB unpacked)
#   FOLDER   an unpacked libtorch, or the torch folder of an environment
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

only_build=no
if [ "${1:-}" = --build ]; then only_build=yes && shift; fi
case ${1:-} in
  --help | -h) usage ;;
  "") say "error: expected a version, such as 2.13.0, or a folder with LibTorch"; exit 2 ;;
esac

# download FOLDER REQUIREMENT...: wheels, without their requirements.
download() {
  TMPDIR=$1 python3 -m pip download --no-cache-dir --disable-pip-version-check --no-deps --only-binary=:all: --quiet --retries 1 --dest "$@" >&2
}

# fetch VERSION: libraries and headers of PyTorch's wheel for the CPU, or else of the package index's own, whose CPU libraries
# need two of NVIDIA's.
fetch() {
  local folder=$cache/libtorch-cpu-$1 work wheel
  if [ ! -e "$folder/complete" ]; then
    mkdir -p "$folder"
    work=$(mktemp -d "$cache/download.XXXXXX")
    # shellcheck disable=SC2064 # the name is local
    trap "rm -rf '$work'" EXIT
    say "downloading LibTorch $1 for the CPU into $folder"
    download "$work" --index-url https://download.pytorch.org/whl/cpu "torch==$1" 2>/dev/null ||
      download "$work" "torch==$1" "nvidia-cuda-cupti==13.*" "nvidia-cuda-runtime==13.*" ||
      { rm -rf "$folder"; say "skipped: no torch $1 to be had"; exit 4; }
    for wheel in "$work"/*.whl; do
      unzip -qo "$wheel" 'torch/lib/*' 'torch/include/*' 'nvidia/*/lib/*' 'torch-*.dist-info/*' -x '*/libtorch_cuda*' '*/libtorch_python*' -d "$folder" ||
        [ $? = 11 ] # no file of one of these patterns
    done
    touch "$folder/complete"
  fi
  echo "$folder/torch"
}

where=$1
shift
if [ ! -d "$where" ]; then
  [[ $where =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { say "error: expected a version, such as 2.13.0, or a folder, got '$where'"; exit 2; }
  where=$(fetch "$where")
fi
where=$(cd "$where" && pwd)
header=$where/include/torch/headeronly/version.h
[ -e "$header" ] || die "$where: no $header: expected LibTorch 2.11 or later"
version=$(sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\) //p' "$header" | paste -sd.)

cd "$root"
build=build-libtorch-$version
step "configuring ($build)" cmake --preset release -B "$build" -DCMAKE_PREFIX_PATH="$where" -DLibTorch_ALSO_TRY="$version" \
  -DDDPRUN_WERROR="$([ -z "${CI:-}" ] && echo OFF || echo ON)" >&2
step "building ($build)" cmake --build "$build" -j "$(jobs)" --target worker ddprun_ddp_tests >&2
[ "$only_build" = no ] || exit 0
[ $# -gt 0 ] || set -- -R '^ddprun_ddp_tests:'
step "testing ($build)" run_ctest "$build" "$@"
