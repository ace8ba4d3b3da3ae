#!/usr/bin/env bash
# Fetches a data set to where the worker finds it by name. Running it again is safe; after an interruption it continues
# where it stopped. Each file's SHA-256 is checked (data_files.txt, beside this script) before the file is put in place.
#
# usage: scripts/get_data.sh mnist|fashion-mnist|cifar10|nuclei [DIR]
#   DIR   where to make a folder with the data set's name; by default ~/.cache/ddprun/data. With another DIR, set
#         DDPRUN_DATA=DIR for the worker.
#
# DDPRUN_DATA_MIRROR=URL fetches URL/NAME/FILE instead of the official addresses, for example
# file:///mnt/data for /mnt/data/mnist/train-images-idx3-ubyte.gz and so on.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

table=$(dirname "${BASH_SOURCE[0]}")/data_files.txt

wrong_usage() { say "error: $*"; exit 2; }

need() {
  command -v "$1" >/dev/null || die "$1 is needed and not installed: apt-get install $2"
}

sha256() { sha256sum <"$1" | cut -d' ' -f1; }

# is_right FILE SHA256 SHA256_OF_CONTENT
is_right() {
  [ "$(sha256 "$1")" = "$2" ] && return
  local content
  [ "$3" != - ] && content=$(gzip -dc <"$1" 2>/dev/null | sha256sum | cut -d' ' -f1) && [ "$content" = "$3" ]
}

# download ADDRESS FILE: all of it, or the missing rest.
download() {
  local progress=(--silent --show-error) status=0
  if [ -t 2 ]; then progress=(--progress-bar); fi
  curl --fail --location --retry 3 --connect-timeout 30 --speed-limit 1 --speed-time 60 --continue-at - \
    "${progress[@]}" --output "$2" "$1" || status=$?
  case $status in
    22 | 33 | 36) # missing, or the server cannot resume: start over
      [ -s "$2" ] || return $status
      rm -f "$2"
      download "$1" "$2" ;;
    *) return $status ;;
  esac
}

# fetch FILE SHA256 SHA256_OF_CONTENT ADDRESS...: leaves a correct file or none.
fetch() {
  local file=$1 sum=$2 content=$3 address attempt
  shift 3
  for address in "$@"; do
    for attempt in again anew; do
      if [ -s "$file" ] && is_right "$file" "$sum" "$content"; then return; fi
      [ -s "$file" ] || attempt=anew
      say "fetching $address"
      if ! download "$address" "$file"; then
        say "warning: could not fetch $address"
        break
      fi
      if is_right "$file" "$sum" "$content"; then return; fi
      say "warning: $address: expected SHA-256 $sum, got $(sha256 "$file"): refused and removed"
      rm -f "$file"
      # The part it continued from may have been wrong.
      if [ "$attempt" = anew ]; then break; fi
    done
  done
  if [ -s "$file" ]; then die "interrupted; run it again to go on: $name"; fi
  die "could not fetch ${file##*/.} of $name"
}

# unpack ARCHIVE FOLDER: FOLDER appears when it is complete.
unpack() {
  local scratch=$parts/unpack
  rm -rf "$scratch"
  mkdir "$scratch"
  say "unpacking ${1##*/}"
  case $1 in
    *.zip) unzip -q "$1" -d "$scratch" ;;
    *) tar -xzf "$1" -C "$scratch" --no-same-owner ;;
  esac || { rm -rf "$scratch"; die "$1: could not be unpacked"; }
  if [ -d "$scratch/${2##*/}" ]; then mv "$scratch/${2##*/}" "$2" && rm -rf "$scratch"; else mv "$scratch" "$2"; fi
}

# get FILE SHA256 SHA256_OF_CONTENT FOLDER ADDRESS...: one line of the table into $parts.
get() {
  local file=$1 sum=$2 content=$3 item=$4
  shift 4
  if [ "$item" = - ]; then item=$file; fi
  if [ -e "$home/$item" ] || [ -e "$parts/$item" ]; then return; fi
  if [ -n "${DDPRUN_DATA_MIRROR:-}" ]; then set -- "${DDPRUN_DATA_MIRROR%/}/$name/$file"; fi
  fetch "$parts/.$file" "$sum" "$content" "$@"
  if [ "$item" = "$file" ]; then
    mv "$parts/.$file" "$parts/$file"
  else
    unpack "$parts/.$file" "$parts/$item"
    rm "$parts/.$file"
  fi
}

# The data appear under the data set's name, all at once if nothing is there yet.
put_in_place() {
  if [ -e "$home" ]; then
    find "$parts" -mindepth 1 -maxdepth 1 -not -name '.*' -exec mv -n -t "$home" {} +
    rm -rf "$parts"
  else
    mv "$parts" "$home"
  fi
}

is_complete() {
  local line
  for line in "${lines[@]}"; do
    read -r _ file _ _ item _ <<<"$line"
    if [ "$item" = - ]; then item=$file; fi
    [ -e "$home/$item" ] || return 1
  done
}

names=$(grep -v '^#' "$table" | cut -d' ' -f1 | uniq | paste -sd'|')
case ${1:-} in --help | -h) usage ;; esac
if [ $# -lt 1 ] || [ $# -gt 2 ]; then wrong_usage "expected $names [DIR]"; fi
name=$1 folder=${2:-$cache/data}
mapfile -t lines < <(awk -v name="$name" '$1 == name' "$table")
if [ ${#lines[@]} -eq 0 ]; then wrong_usage "unknown data set '$name', expected $names"; fi

home=$folder/$name parts=$folder/.$name.part
if is_complete; then
  say "$home: already there"
  exit 0
fi
need curl curl
case ${lines[0]} in *.zip\ *) need unzip unzip ;; esac
mkdir -p "$folder" || die "$folder: cannot be made"
exec 9<"$folder"
flock 9 # another call may be running
if is_complete; then exit 0; fi
trap 'rm -rf "$parts/unpack"; if [ -d "$parts" ]; then rmdir --ignore-fail-on-non-empty "$parts"; fi' EXIT
mkdir -p "$parts"
for line in "${lines[@]}"; do
  read -r _ fields <<<"$line"
  # shellcheck disable=SC2086
  get $fields
done
put_in_place
say "$home: done"
