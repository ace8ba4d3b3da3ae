#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/serialize/portable_value.h>

namespace ddprun::serialize {

/// Writes a value as a file that Python's torch.load(path) reads, also with weights_only=True and mmap=True.
/// Atomic: a crash at any moment leaves the old file or the new one. The new file is read back from disk and
/// its CRC-32 verified before it replaces the old one.
///
/// root    dicts, lists, tuples, strings, numbers, bools, None and dense tensors on any device; tensors that
///         share memory share it in the file, but small views of large memory are written as copies. Invalid
///         UTF-8 in strings becomes U+FFFD
/// value_of  called for one tensor of each storage; its result, if it is another tensor, is contiguous
/// throws  IoError naming path; std::invalid_argument for another kind of value
void write_pt(const std::filesystem::path& path, const c10::IValue& root, const ValueOf& value_of = {});

/// Reads a file of write_pt or Python's torch.save, including its older format, with tensors on the CPU; see
/// unpickle() for the types. Executes nothing from the file, and verifies a zip's CRC-32 throughout.
///
/// throws  IoError naming path and what was expected
c10::IValue read_pt(const std::filesystem::path& path);

/// The same for a dict, reading only the tensors under these keys, to save memory; other tensors have
/// arbitrary values. The whole file is verified.
c10::IValue read_pt(const std::filesystem::path& path, const std::vector<std::string>& keys);

/// The same for a zip without reading or verifying tensor data: tensors have arbitrary values.
c10::IValue peek_pt(const std::filesystem::path& path);

}  // namespace ddprun::serialize
