#include "tests/support/crashed_disk.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <stdexcept>
#include <utility>

#include <ddprun/common/files.h>

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const FileBytes> make_bytes(std::string bytes) {
  const auto hash = std::hash<std::string>()(bytes);
  return std::make_shared<const FileBytes>(FileBytes{std::move(bytes), hash});
}

std::uint64_t inode_of(const fs::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) throw std::runtime_error(path.string() + " is gone");
  return info.st_ino;
}

/// Whether one write goes on where the other ended.
bool goes_on(const LoggedChange& next, const LoggedChange& last) {
  return next.kind == DiskChange::kWrite && last.kind == DiskChange::kWrite && next.inode == last.inode &&
         next.at == last.at + last.data.size();
}

}  // namespace

std::vector<LoggedChange> read_disk_log(const fs::path& log, const fs::path& folder) {
  const auto text = read_file(log);
  const auto relative = [&](const std::string& path) {
    return path.size() <= folder.string().size() ? "" : path.substr(folder.string().size() + 1);
  };
  std::vector<LoggedChange> changes;
  for (std::size_t at = 0; at < text.size();) {
    DiskChange head;
    std::memcpy(&head, text.data() + at, sizeof head);
    at += sizeof head;
    const auto next = [&](std::size_t size) { return text.substr(std::exchange(at, at + size), size); };
    auto path = next(head.path_size), other = next(head.other_size);
    LoggedChange change{head.kind,  relative(path), relative(other),
                        head.inode, head.at,        next(head.data_size)};
    if (!changes.empty() && goes_on(change, changes.back()))
      changes.back().data += change.data;
    else
      changes.push_back(std::move(change));
  }
  return changes;
}

std::string description(const LoggedChange& change) {
  constexpr const char* kKinds[] = {"create", "mkdir", "write",  "truncate",
                                    "rename", "link",  "remove", "sync"};
  return std::string(kKinds[change.kind]) + " " + change.path +
         (change.other.empty() ? "" : " " + change.other);
}

std::size_t hash_of(const Tree& tree) {
  std::size_t hash = 0;
  for (const auto& [path, bytes] : tree)
    for (const std::size_t part : {std::hash<std::string>()(path), bytes ? bytes->hash : 1})
      hash = (hash ^ part) * 0x9E3779B97F4A7C15U + (hash >> 29);
  return hash;
}

Tree read_tree(const fs::path& folder) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    tree[entry.path().lexically_relative(folder).string()] =
        entry.is_directory() ? nullptr : make_bytes(read_file(entry.path()));
  return tree;
}

void write_tree(const Tree& tree, const fs::path& folder) {
  fs::create_directories(folder);
  for (const auto& [path, bytes] : tree)  // a folder comes before what is in it
    if (bytes)
      std::ofstream(folder / path, std::ios::binary) << bytes->bytes;
    else
      fs::create_directory(folder / path);
}

CrashedDisk::CrashedDisk(const fs::path& folder) : root_(read(folder)) {}

CrashedDisk::NodePtr CrashedDisk::read(const fs::path& path) {
  auto& node = by_inode_[inode_of(path)];
  if (node) return node;  // by its other name
  node = std::make_shared<Node>();
  const auto made = node;
  made->is_folder = fs::is_directory(path);
  if (!made->is_folder) {
    made->bytes = made->synced_bytes = make_bytes(read_file(path));
    return made;
  }
  for (const auto& entry : fs::directory_iterator(path))
    made->names[entry.path().filename().string()] = read(entry.path());
  made->synced_names = made->names;
  return made;
}

CrashedDisk::NodePtr CrashedDisk::find(const std::string& path) const {
  auto node = root_;
  for (const auto& name : fs::path(path)) {
    const auto found = node->names.find(name);
    if (found == node->names.end()) throw std::runtime_error("the log has not made " + path);
    node = found->second;
  }
  return node;
}

std::shared_ptr<CrashedDisk::Change> CrashedDisk::rename(const std::string& path, NodePtr node,
                                                         std::shared_ptr<Change> after) {
  const auto folder = find(fs::path(path).parent_path());
  const auto name = fs::path(path).filename().string();
  if (node)
    folder->names[name] = node;
  else
    folder->names.erase(name);
  return changes_.emplace_back(
      std::make_shared<Change>(Change{folder, name, std::move(node), std::move(after)}));
}

void CrashedDisk::sync(const std::shared_ptr<Change>& change) {
  if (change->is_synced) return;
  for (const auto& earlier : changes_) {
    if (earlier == change) break;
    if (earlier->folder == change->folder && earlier->name == change->name) sync(earlier);
  }
  change->is_synced = true;
  if (change->after) sync(change->after);
  if (change->node)
    change->folder->synced_names[change->name] = change->node;
  else
    change->folder->synced_names.erase(change->name);
}

void CrashedDisk::apply(const LoggedChange& change) {
  const auto make = [&](bool is_folder) {
    auto node = std::make_shared<Node>();
    node->is_folder = is_folder;
    if (!is_folder) node->bytes = node->synced_bytes = make_bytes("");
    by_inode_[change.inode] = node;
    rename(change.path, node);
  };
  const auto set = [&](const auto& edit) {
    const auto& node = by_inode_.at(change.inode);
    auto bytes = node->bytes->bytes;
    edit(bytes);
    node->bytes = make_bytes(std::move(bytes));
  };
  switch (change.kind) {
    case DiskChange::kCreate:
      return make(/*is_folder=*/false);
    case DiskChange::kMakeFolder:
      return make(/*is_folder=*/true);
    case DiskChange::kTruncate:
      return set([&](auto& bytes) { bytes.resize(change.at); });
    case DiskChange::kWrite:
      return set([&](auto& bytes) {
        bytes.resize(std::max(bytes.size(), change.at + change.data.size()));
        bytes.replace(change.at, change.data.size(), change.data);
      });
    case DiskChange::kRename: {
      const auto made = rename(change.other, find(change.path));
      rename(change.path, nullptr, made);
      return;
    }
    case DiskChange::kLink:
      rename(change.other, find(change.path));
      return;
    case DiskChange::kRemove:
      rename(change.path, nullptr);
      return;
    case DiskChange::kSync:
      break;
  }
  const auto& node = by_inode_.at(change.inode);
  node->synced_bytes = node->bytes;
  for (const auto& each : changes_)
    if (each->folder == node) sync(each);
  std::erase_if(changes_, [](const auto& each) { return each->is_synced; });
}

void CrashedDisk::add(Tree& tree, const std::string& path, const NodePtr& node, const Chosen& chosen,
                      Bytes bytes, std::mt19937& random) const {
  if (!node->is_folder) {
    const auto &all = node->bytes, synced = node->synced_bytes;
    if (bytes == Bytes::kRandom) bytes = static_cast<Bytes>(random() % 4);
    if (all == synced || bytes == Bytes::kAll)
      tree[path] = all;
    else if (bytes == Bytes::kLost)
      tree[path] = synced;
    else if (bytes == Bytes::kHalf)
      tree[path] = make_bytes(all->bytes.substr(0, (all->bytes.size() + synced->bytes.size()) / 2));
    else
      tree[path] = make_bytes(
          synced->bytes +
          std::string(all->bytes.size() - std::min(all->bytes.size(), synced->bytes.size()), '\0'));
    return;
  }
  if (!path.empty()) tree[path] = nullptr;
  auto names = node->synced_names;
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    if (!chosen[i] || changes_[i]->folder != node) continue;
    if (changes_[i]->node)
      names[changes_[i]->name] = changes_[i]->node;
    else
      names.erase(changes_[i]->name);
  }
  for (const auto& [name, inside] : names)
    add(tree, path.empty() ? name : path + "/" + name, inside, chosen, bytes, random);
}

Tree CrashedDisk::now() const {
  Tree tree;
  std::mt19937 unused;
  add(tree, "", root_, Chosen(changes_.size(), true), Bytes::kAll, unused);
  return tree;
}

Tree CrashedDisk::synced(const std::string& folder) const {
  Tree tree;
  for (const auto& [name, node] : find(folder)->synced_names)
    if (!node->is_folder) tree[name] = node->synced_bytes;
  return tree;
}

std::vector<CrashedDisk::Chosen> CrashedDisk::choices(std::mt19937& random) const {
  const auto count = changes_.size();
  std::vector<Chosen> all = {Chosen(count, true), Chosen(count, false)};
  for (std::size_t i = 0; i < count; ++i) {
    all.emplace_back(count, true)[i] = false;
    all.emplace_back(count, false)[i] = true;
  }
  for (int i = 0; i < 4 && count > 2; ++i)
    for (auto&& each : all.emplace_back(count, false)) each = random() % 2 == 0;
  // A rename does not remove the old name before the new one is on disk, and a name is not taken again before
  // that.
  const auto needs = [&](std::size_t i, std::size_t other) {
    const auto &change = *changes_[i], &earlier = *changes_[other];
    return change.after == changes_[other] ||
           (change.folder == earlier.folder && change.name == earlier.name);
  };
  for (auto& chosen : all)
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t other = 0; other < i; ++other)
        if (needs(i, other) && !chosen[other]) chosen[i] = false;
  return all;
}

std::vector<Tree> CrashedDisk::after_power_failure(std::mt19937& random) const {
  std::vector<Tree> trees;
  std::set<std::size_t> seen;
  for (const auto& chosen : choices(random))
    for (const auto bytes : {Bytes::kAll, Bytes::kLost, Bytes::kHalf, Bytes::kZeros, Bytes::kRandom}) {
      Tree tree;
      add(tree, "", root_, chosen, bytes, random);
      if (seen.insert(hash_of(tree)).second) trees.push_back(std::move(tree));
    }
  return trees;
}

}  // namespace ddprun::test
