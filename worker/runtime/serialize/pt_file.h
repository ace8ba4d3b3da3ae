#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace ddprun::serialize {

/// Writes a value as a file that Python's torch.load(path) reads, with weights_only=True and mmap=True too;
/// atomically: a crash at any moment leaves the old file or the new one. What was written is read again from
/// the disk for its CRC-32 before it takes the old one's place.
///
/// root    dicts, lists, tuples, strings, numbers, bools, None and dense tensors on any device; tensors that
/// share
///         memory share it in the file, but small views of large memory are written as copies. Bytes in
///         strings that are not UTF-8 are replaced by U+FFFD
/// throws  IoError naming path; std::invalid_argument for another kind of value
void write_pt(const std::filesystem::path& path, const c10::IValue& root);

/// The value in a file of write_pt or of Python's torch.save, its older format too, with its tensors on the
/// CPU; see unpickle() for the kinds. Nothing in the file is executed, and all of a zip is verified by its
/// CRC-32.
///
/// throws  IoError naming path, with one line that says what was expected
c10::IValue read_pt(const std::filesystem::path& path);

/// The same of a dict, to spend memory on its parts under these keys only: the values of other tensors are
/// arbitrary. All of the file is verified nevertheless.
c10::IValue read_pt(const std::filesystem::path& path, const std::vector<std::string>& keys);

/// The same of a zip without reading its tensors' data: their values are arbitrary, and only the rest is
/// verified.
c10::IValue peek_pt(const std::filesystem::path& path);

}  // namespace ddprun::serialize
