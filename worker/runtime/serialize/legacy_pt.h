#pragma once

#include <filesystem>
#include <string_view>

#include <ATen/core/ivalue.h>

namespace ddprun::serialize {

/// Whether a file that starts like this was written by torch.save before 1.6, or with
/// _use_new_zipfile_serialization=False.
bool is_legacy_pt(std::string_view start);

/// The value in such a file. It has no checksums, so only truncation and inconsistencies are detected.
///
///   pickles: magic number | 1001 | system | value | storage keys, then for each key int64 numel | data
///
/// throws  IoError naming path; UnpickleError
c10::IValue read_legacy_pt(const std::filesystem::path& path);

}  // namespace ddprun::serialize
