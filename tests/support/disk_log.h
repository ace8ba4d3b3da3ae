#pragma once

#include <cstdint>

namespace ddprun::test {

/// What disk_log.cpp appends to its log for each change in the folder; then come path, other and data.
struct DiskChange {
  enum Kind : std::uint32_t { kCreate, kMakeFolder, kWrite, kTruncate, kRename, kLink, kRemove, kSync };

  Kind kind;
  std::uint32_t path_size = 0, other_size = 0;  ///< absolute paths; other: of kRename and kLink
  std::uint64_t inode = 0;  ///< kCreate, kMakeFolder, kWrite, kTruncate, kSync: the file or folder
  std::uint64_t at = 0;     ///< kWrite: the offset, kTruncate: the new size
  std::uint64_t data_size = 0;
};

}  // namespace ddprun::test
