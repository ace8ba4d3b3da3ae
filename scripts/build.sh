#!/usr/bin/env bash
# Configures and builds; programs go to build/bin (release) or build-NAME/bin.
#
# usage: scripts/build.sh [--debug|--asan|--tsan|--portable] [--launcher|--programs [--cuda]] [cmake arguments]
#   --launcher  only ddprun and ddpctl, which need no LibTorch
#   --programs  only ddprun, ddpctl and worker, without tests
#   --cuda      with --programs: the CUDA plug-in too, which needs the headers that scripts/setup.sh --cuda fetches
#   --debug     everything, without optimisation            (build-debug)
#   --asan      launcher and common, AddressSanitizer+UBSan (build-asan)
#   --tsan      launcher and common, ThreadSanitizer        (build-tsan)
#   --portable  ddprun and ddpctl, small and stripped, for any Linux with glibc 2.28 or later (build-portable)
#
# Useful cmake arguments:
#   -DDDPRUN_UNITY=OFF  compile each file by itself: slower as a whole, but a change to one file takes seconds
#   -DCMAKE_PREFIX_PATH=<unpacked libtorch>  use that LibTorch
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release arguments=() targets=() cuda=no
for argument in "$@"; do
  case $argument in
    --debug | --asan | --tsan | --portable) preset=${argument#--} ;;
    --launcher) targets=(--target ddprun ddpctl) arguments+=(-DDDPRUN_WORKER=OFF) ;;
    --programs) targets=(--target ddprun ddpctl worker) arguments+=(-DDDPRUN_WORKER=ON) ;;
    --cuda) cuda=yes ;;
    --help | -h) usage ;;
    -D*) arguments+=("$argument") ;;
    *) say "error: unknown argument '$argument', expected --debug, --asan, --tsan, --portable, --launcher, --programs, --cuda or -D..."; exit 2 ;;
  esac
done
if [ "$cuda" = yes ]; then
  [[ " ${targets[*]-} " == *" worker "* ]] || { say "error: --cuda: expected with --programs; without it the plug-in is built where its headers are"; exit 2; }
  targets+=(ddprun_cuda)
fi
[ "$preset" != portable ] || targets=(--target ddprun ddpctl)

cd "$root"
command -v cmake >/dev/null || die "cmake is missing: run scripts/setup.sh first"
# Warnings are errors in CI. The caller's arguments come later, so they win.
arguments=(-DDDPRUN_WERROR="$([ -z "${CI:-}" ] && echo OFF || echo ON)" ${arguments[@]+"${arguments[@]}"})
step "configuring ($preset)" cmake --preset "$preset" "${arguments[@]}"
step "building ($preset)" cmake --build --preset "$preset" -j "$(jobs)" ${targets[@]+"${targets[@]}"} >&2
