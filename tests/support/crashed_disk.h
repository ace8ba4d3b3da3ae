#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/disk_log.h"

namespace ddprun::test {

struct LoggedChange {
  DiskChange::Kind kind;
  std::string path, other;  ///< relative to the folder
  std::uint64_t inode = 0, at = 0;
  std::string data;
};

/// What disk_log.cpp has logged. Writes to one file right after one another are one change.
std::vector<LoggedChange> read_disk_log(const std::filesystem::path& log,
                                        const std::filesystem::path& folder);

std::string description(const LoggedChange& change);

struct FileBytes {
  std::string bytes;
  std::size_t hash = 0;
};

/// A folder's contents by relative path. null: a folder
using Tree = std::map<std::string, std::shared_ptr<const FileBytes>>;

std::size_t hash_of(const Tree& tree);
Tree read_tree(const std::filesystem::path& folder);
void write_tree(const Tree& tree, const std::filesystem::path& folder);

/// A folder on a disk that may lose what was not synced, as POSIX allows: of a file, what was written since
/// its last fsync; of a folder, each name that was made, replaced or removed since its own last fsync,
/// whatever became of the others. A rename is whole: the old name does not go, and is not taken again, before
/// the new one is there.
class CrashedDisk {
 public:
  /// All that is there counts as synced.
  explicit CrashedDisk(const std::filesystem::path& folder);

  void apply(const LoggedChange& change);

  /// If nothing is lost.
  Tree now() const;
  /// What may be found after a power failure: with all names that are not synced, with none, with all but
  /// one, with only one, and with random ones; each with what was written and not synced, without it, with
  /// half of it, and with zeros in its place.
  std::vector<Tree> after_power_failure(std::mt19937& random) const;
  /// A folder's files that nothing can take away any more.
  Tree synced(const std::string& folder) const;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  struct Node {
    bool is_folder = false;
    std::shared_ptr<const FileBytes> bytes, synced_bytes;
    std::map<std::string, NodePtr> names, synced_names;
  };
  /// Of a name that is not synced.
  struct Change {
    NodePtr folder;
    std::string name;
    NodePtr node;                   ///< null: removed
    std::shared_ptr<Change> after;  ///< is on disk whenever this one is
    bool is_synced = false;
  };
  enum class Bytes { kAll, kLost, kHalf, kZeros, kRandom };
  using Chosen = std::vector<bool>;  // of changes_

  NodePtr read(const std::filesystem::path& path);
  NodePtr find(const std::string& path) const;
  std::shared_ptr<Change> rename(const std::string& path, NodePtr node, std::shared_ptr<Change> after = {});
  void sync(const std::shared_ptr<Change>& change);
  std::vector<Chosen> choices(std::mt19937& random) const;
  void add(Tree& tree, const std::string& path, const NodePtr& node, const Chosen& chosen, Bytes bytes,
           std::mt19937& random) const;

  std::map<std::uint64_t, NodePtr> by_inode_;
  NodePtr root_;
  std::vector<std::shared_ptr<Change>> changes_;
};

}  // namespace ddprun::test
