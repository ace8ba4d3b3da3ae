#!/usr/bin/env bash
# Installs what a build and its tests need: system packages and LibTorch. Running it again changes nothing.
#
# usage: scripts/setup.sh [--cuda] [--dev] [--python] [--no-libtorch]
#   --cuda         also fetch what a GPU needs (NVIDIA's packages, about 2.6 GB more on disk)
#   --dev          also install what only developers need (clang-format, clang for scripts/fuzz.sh, Slurm, MPICH, Open MPI, Prometheus, sshd, etcd,
#                  tmux and a browser for their tests, doxygen for scripts/docs.sh, NCCL's headers to compile the CUDA plug-in)
#   --python       make the Python with PyTorch that some tests compare with (tests/requirements.txt), in the cache folder, and
#                  fetch the newest PyTorch that some of them run with, too
#   --no-libtorch  leave LibTorch alone: you pass -DCMAKE_PREFIX_PATH=<unpacked libtorch> to cmake
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cuda=no dev=no python=no fetch_libtorch=yes
for argument in "$@"; do
  case $argument in
    --cuda) cuda=yes ;;
    --dev) dev=yes ;;
    --python) python=yes ;;
    --no-libtorch) fetch_libtorch=no ;;
    --help | -h) usage ;;
    *) say "error: unknown argument '$argument', expected --cuda, --dev, --python or --no-libtorch"; exit 2 ;;
  esac
done

# ---- system packages -------------------------------------------------------------------------------------------

packages=(g++ cmake ninja-build ccache git ca-certificates curl unzip python3 python3-pip libspdlog-dev catch2
          nlohmann-json3-dev libtomlplusplus-dev libhwloc-dev libgloo-dev zlib1g-dev libzip-dev libdeflate-dev
          libncurses-dev libpng-dev libjpeg-dev libprotozero-dev libjs-dygraphs dataset-fashion-mnist elfutils)
[ "$dev" = no ] || packages+=(clang clang-format gdb iproute2 libclang-rt-dev tmux)

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# The distribution's newest Boost that we support: Debian 12 has 1.81 next to its default 1.74, Ubuntu 24.04 has 1.83.
boost_package() {
  local name
  for name in libboost1.88-dev libboost1.83-dev libboost1.81-dev; do
    if is_installed "$name"; then echo "$name"; return; fi
  done
  for name in libboost1.83-dev libboost1.81-dev libboost1.88-dev; do
    if apt-cache show "$name" >/dev/null 2>&1; then echo "$name"; return; fi
  done
  echo libboost1.83-dev
}

missing_packages() {
  local name
  for name in "${packages[@]}" "$(boost_package)"; do
    is_installed "$name" || printf '%s ' "$name"
  done
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

by_hand() { echo "apt-get update && apt-get install -y --no-install-recommends $1"; }

install_packages() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >&2
}

setup_packages() {
  if ! command -v apt-get >/dev/null; then
    say "no apt-get here: this script knows Debian 12 and Ubuntu 24.04. Elsewhere, install the counterparts of:"
    say "  ${packages[*]} libboost-dev (1.81 or later)"
    die "cannot install system packages"
  fi
  local missing
  missing=$(missing_packages)
  if [ -z "${missing// /}" ]; then return; fi
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    die "not root and no sudo. As root, run: $(by_hand "$missing")"
  fi
  say "system packages to install: $missing"
  as_root apt-get update >&2 || say "warning: apt-get update failed; going on with the lists at hand"
  missing=$(missing_packages) # the lists may have brought a Boost
  # shellcheck disable=SC2086
  install_packages $missing || die "could not install them (no network, or sudo is not for you?). As root, run: $(by_hand "$missing")"
}

# For tests that are skipped without it, so the setup continues if it cannot be installed.
setup_slurm() {
  if is_installed slurm-wlm && is_installed munge; then return; fi
  apt-cache show slurm-wlm >/dev/null 2>&1 || as_root apt-get update >&2 || true
  install_packages slurm-wlm munge || say "warning: could not install slurm-wlm and munge; the tests of Slurm will be skipped"
}

# Likewise.
setup_mpi() {
  command -v mpiexec.mpich >/dev/null || install_packages mpich || say "warning: could not install mpich; tests of mpiexec will be skipped"
  command -v mpirun.openmpi >/dev/null || install_packages openmpi-bin || say "warning: could not install openmpi-bin; tests of mpirun will be skipped"
}

# Likewise, for scripts/docs.sh.
setup_doxygen() {
  is_installed doxygen || install_packages doxygen || say "warning: could not install doxygen; the documentation is without a reference of the library"
}

# Likewise, for the test of --metrics-port. Its service is not wanted: only the programs.
setup_prometheus() {
  if command -v prometheus >/dev/null && command -v promtool >/dev/null; then return; fi
  install_packages prometheus || { say "warning: could not install prometheus; a part of its test will be skipped"; return; }
  if command -v systemctl >/dev/null; then as_root systemctl disable --now prometheus >&2 || true; fi
}

# Likewise, for the test of --hosts, which starts an sshd of its own: the service is not wanted.
setup_sshd() {
  if command -v sshd >/dev/null || [ -x /usr/sbin/sshd ]; then return; fi
  install_packages openssh-server || { say "warning: could not install openssh-server; the test of --hosts will be skipped"; return; }
  if command -v systemctl >/dev/null; then as_root systemctl disable --now ssh >&2 || true; fi
}

# Likewise, for the tests of --rdzv-backend=etcd (13 MB), which start etcds of their own: the service is not wanted.
setup_etcd() {
  if command -v etcd >/dev/null && command -v etcdctl >/dev/null; then return; fi
  install_packages etcd-server etcd-client || { say "warning: could not install etcd-server and etcd-client; the tests of etcd will be skipped"; return; }
  if command -v systemctl >/dev/null; then as_root systemctl disable --now etcd >&2 || true; fi
}

# Likewise, for the test of packaging/kubernetes/Containerfile (60 MB).
setup_image_builder() {
  if command -v buildah >/dev/null && command -v mmdebstrap >/dev/null; then return; fi
  install_packages buildah mmdebstrap || say "warning: could not install buildah and mmdebstrap; the test of the container image will be skipped"
}

# Likewise, for the test that looks at the report page. Ubuntu has it only as a snap, which this does not install.
setup_browser() {
  if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then return; fi
  local policy
  policy=$(apt-cache policy chromium 2>/dev/null) # not into a pipe: grep -q may end before apt-cache has written all
  if [[ $policy =~ Candidate:\ [0-9] ]]; then install_packages chromium && return; fi
  say "warning: no chromium to be had; the test of the report page in a browser will be skipped"
}

# ---- LibTorch from the torch wheel -------------------------------------------------------------------------------

# libtorch_cpu of this wheel is linked to these two even where there is no GPU.
cpu_requirements=("torch==$torch_version" nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96)
nccl=nvidia-nccl-cu13==2.28.9
# The wheel's other requirements: the libraries that libtorch_cuda is linked to.
cuda_requirements=(nvidia-cublas==13.1.0.3 nvidia-cuda-nvrtc==13.0.88 nvidia-cudnn-cu13==9.19.0.56
                   nvidia-cufft==12.0.0.61 nvidia-cufile==1.15.1.6 nvidia-curand==10.4.0.35
                   nvidia-cusolver==12.0.4.66 nvidia-cusparse==12.6.3.3 nvidia-cusparselt-cu13==0.8.0
                   "$nccl" nvidia-nvjitlink==13.0.88 nvidia-nvshmem-cu13==3.4.5
                   nvidia-nvtx==13.0.85)

# download FOLDER REQUIREMENT...: wheels of the fixed Python tag, so that every Python 3 fetches the same files.
download() {
  local folder=$1
  shift
  # What this generation of wheels runs on: glibc 2.28, or anything older.
  local platforms=(--platform "manylinux2014_$(uname -m)") minor
  for minor in {17..28}; do platforms+=(--platform "manylinux_2_${minor}_$(uname -m)"); done
  # Keep nothing twice: no copy in pip's own cache, and its scratch files next to ours, not in /tmp.
  TMPDIR=$work python3 -m pip download --no-cache-dir --progress-bar on --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
    "${platforms[@]}" --dest "$folder" "$@" >&2
}

# unpack FOLDERS FOLDER WHEEL...: of NVIDIA's FOLDERS (a pattern) and LibTorch only libraries, headers and licences; no Python code.
unpack() {
  python3 - "$@" <<'PYTHON'
import re, sys, zipfile
nvidia, folder, wheels = sys.argv[1], sys.argv[2], sys.argv[3:]
wanted = re.compile(r"torch/lib/(?!libtorch_python)|torch/include/|nvidia/.*/(" + nvidia +
                    r")/|[^/]+\.dist-info/(licenses/|LICENSE|License)")
for wheel in wheels:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if wanted.match(n)])
PYTHON
}

work= # the folder of the download in progress
trap '[ -z "$work" ] || rm -rf "$work"' EXIT

fetch_wheels() { # fetch_wheels WHAT REQUIREMENT...
  local what=$1
  shift
  work=$(mktemp -d "$cache/download.XXXXXX")
  say "downloading $what"
  download "$work/wheels" "$@" || die "could not download $what from the Python package index (is there a network?)"
  say "unpacking $what into $libtorch"
  mkdir -p "$libtorch"
  unpack 'lib|include' "$libtorch" "$work"/wheels/*.whl
  rm -rf "$work"
  work=
}

# For the CUDA plug-in, which every change must compile: the libraries come with --cuda. Without it the plug-in's test is skipped.
setup_nccl_headers() {
  local place
  for place in "$libtorch"/nvidia/*/include /usr/local/cuda/include /usr/local/include /usr/include; do
    if [ -e "$place/nccl.h" ]; then return; fi
  done
  exec 9>"$cache/setup.lock"
  flock 9
  work=$(mktemp -d "$cache/download.XXXXXX")
  say "downloading NCCL's headers (in a package of 197 MB)"
  if download "$work/wheels" "$nccl"; then
    unpack include "$libtorch" "$work"/wheels/*.whl
  else
    say "warning: could not download NCCL's headers; the CUDA plug-in is not compiled, and its test will be skipped"
  fi
  rm -rf "$work"
  work=
  exec 9>&-
}

setup_libtorch() {
  mkdir -p "$cache"
  exec 9>"$cache/setup.lock"
  flock 9                      # two setups at once: the second finds everything there
  rm -rf "$cache"/download.* # left by a killed setup
  if [ ! -e "$libtorch/cpu.complete" ]; then
    local free_mb
    free_mb=$(df -Pm "$cache" | awk 'NR==2 {print $4}')
    ((free_mb > 2500)) || die "$cache: LibTorch needs 2.5 GB while it is unpacked, only $free_mb MB are free"
    fetch_wheels "LibTorch $torch_version for the CPU (545 MB, 1.1 GB unpacked)" "${cpu_requirements[@]}"
    touch "$libtorch/cpu.complete"
  fi
  if [ "$cuda" = yes ] && [ ! -e "$libtorch/cuda.complete" ]; then
    fetch_wheels "NVIDIA's libraries for the GPU (2.2 GB, 2.6 GB unpacked)" "${cuda_requirements[@]}"
    touch "$libtorch/cuda.complete"
  fi
  exec 9>&-
}

# ---- a Python with PyTorch -----------------------------------------------------------------------------------------

setup_python() {
  local folder free_mb
  folder=$(test_python_folder)
  mkdir -p "$cache"
  exec 9>"$cache/setup.lock"
  flock 9
  if [ ! -e "$folder/complete" ]; then
    rm -rf "$cache"/test-python-* "$cache"/download.* # left by a killed setup or by other versions
    free_mb=$(df -Pm "$cache" | awk 'NR==2 {print $4}')
    ((free_mb > 8000)) || die "$cache: Python's packages need 8 GB while they are unpacked, only $free_mb MB are free"
    work=$(mktemp -d "$cache/download.XXXXXX")
    say "installing PyTorch and the tests' other Python packages (4 GB unpacked) into $folder"
    # Without its own pip, which Debian would require us to install: the system's pip installs into it.
    python3 -m venv --without-pip "$folder"
    TMPDIR=$work python3 -m pip --python "$folder/bin/python" --disable-pip-version-check install --quiet --retries 2 \
      --no-cache-dir --no-deps --only-binary=:all: --requirement "$root/tests/requirements.txt" >&2 ||
      die "could not install tests/requirements.txt (is there a network?); tests that want it are skipped without it"
    "$folder/bin/python" -c 'import torch, torchvision' || die "$folder: torch cannot be imported"
    touch "$folder/complete"
    rm -rf "$work"
    work=
  fi
  exec 9>&-
  "$root/scripts/try_libtorch.sh" --fetch "$newest_torch_version" ||
    say "warning: no PyTorch $newest_torch_version; the tests that compare with it will be skipped"
  say "Python with PyTorch, for the tests and examples: $folder/bin/python"
}

setup_packages
[ "$dev" = no ] || setup_slurm
[ "$dev" = no ] || setup_mpi
[ "$dev" = no ] || setup_prometheus
[ "$dev" = no ] || setup_sshd
[ "$dev" = no ] || setup_etcd
[ "$dev" = no ] || setup_image_builder
[ "$dev" = no ] || setup_browser
[ "$dev" = no ] || setup_doxygen
[ "$fetch_libtorch" = no ] || setup_libtorch
[ "$fetch_libtorch" = no ] || [ "$dev" = no ] || setup_nccl_headers
[ "$python" = no ] || setup_python
say "ready"
