#pragma once

#include <filesystem>
#include <string_view>

#include <ATen/core/ivalue.h>

namespace ddprun::serialize {

/// Whether a file with this start is one of torch.save before 1.6, or with
/// _use_new_zipfile_serialization=False.
bool is_legacy_pt(std::string_view start);

/// The value in such a file. It has no checksums: what is found is that it is cut, or that something in it
/// does not fit.
///
///   pickles: magic number | 1001 | system | value | storage keys, then for each key int64 numel | data
///
/// throws  IoError naming path; UnpickleError
c10::IValue read_legacy_pt(const std::filesystem::path& path);

}  // namespace ddprun::serialize
