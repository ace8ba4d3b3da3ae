#!/usr/bin/env bash
# Makes a folder with everything that a check on a machine with a GPU needs except a Python with torch: programs, plug-in, GPU
# tests, and their libraries except glibc's, libstdc++ and torch's. At most 60 MiB.
#
# usage: scripts/gpu_bundle.sh [DIR]      (default: dist/gpu-bundle; replaces its contents)
#
# There: DIR/gpu_check.sh --bundle DIR --torch .../site-packages/torch
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; fi

cd "$root"
bundle=${1:-dist/gpu-bundle}
case $bundle in -*) die "unknown flag '$bundle', expected a folder" ;; esac
if [ -e "$bundle" ] && [ ! -e "$bundle/gpu_check.sh" ]; then die "$bundle: is there and no bundle"; fi
cmake --preset release >/dev/null
step "building" cmake --build build -j "$(jobs)" --target ddprun worker ddprun_cuda ddprun_gpu_tests ddprun_training_gpu_tests
rm -rf "$bundle"
mkdir -p "$bundle"/{bin,lib,tests,share/ddprun}
cp build/bin/{ddprun,worker} "$bundle/bin/"
cp build/lib/libddprun_cuda.so "$bundle/lib/"
cp build/tests/ddprun_{gpu,training_gpu}_tests "$bundle/tests/"
cp -r share/ddprun/nuclei-sample "$bundle/share/ddprun/"
cp scripts/{common.sh,gpu_check.sh} bench/sam_nuclei.json "$bundle/"
cp -r scripts/gpu_bundle "$bundle/"
rm -rf "$bundle/gpu_bundle/__pycache__"

# The system libraries that a bare machine may lack.
usual='linux-vdso|ld-linux|libc\.so|libm\.so|libdl\.so|librt\.so|libpthread|libutil\.so|libresolv|libstdc\+\+|libgcc_s|libgomp'
for program in "$bundle"/bin/* "$bundle"/tests/*; do ldd "$program"; done |
  awk '$2 == "=>" && $3 ~ "^/" {print $1, $3}' | sort -u | grep -vE "^($usual)" | grep -vE '/(torch|nvidia)/' |
  while read -r name path; do cp -L "$path" "$bundle/lib/$name"; done
find "$bundle/bin" "$bundle/lib" "$bundle/tests" -type f -exec strip --strip-unneeded {} +

size=$(du -sm "$bundle" | cut -f1)
[ "$size" -le 60 ] || die "$bundle has $size MiB, expected at most 60"
say "$bundle: $size MiB"
