#include <ddprun/common/moved_files.h>

#include <algorithm>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>

namespace ddprun {
namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (status.type() != fs::file_type::none) return fs::exists(status);
  throw IoError(path, "cannot be looked up", error.value());
}

std::vector<fs::path> folder_entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(folder, error); entry != fs::directory_iterator(); entry.increment(error))
    entries.push_back(entry->path());
  return entries;
}

fs::path free_path(const fs::path& path, const std::string& addition) {
  const auto stem = path.parent_path() / (path.stem().string() + addition);
  const auto extension = path.extension().string();
  fs::path free = stem.string() + extension;
  for (int version = 1; is_there(free); ++version)
    free = stem.string() + "-v" + std::to_string(version) + extension;
  return free;
}

fs::path newest_version(const fs::path& path) {
  const auto stem = (path.parent_path() / path.stem()).string();
  auto newest = path;
  for (int version = 1;; ++version) {
    const fs::path next = stem + "-v" + std::to_string(version) + path.extension().string();
    if (!is_there(next)) return newest;
    newest = next;
  }
}

void move_file(const fs::path& from, const fs::path& to) {
  create_folders(to.parent_path());
  std::error_code error;
  fs::rename(from, to, error);
  if (error == std::errc::cross_device_link) {
    error.clear();
    fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::copy_symlinks, error);
    if (!error) fs::remove_all(from, error);
  }
  if (error) throw IoError(from, "cannot be moved to " + to.string(), error.value());
}

void move_back(const fs::path& from, const fs::path& to) {
  std::error_code error;
  auto entries = folder_entries(from);  // a run's list says that its checkpoints are there
  std::stable_partition(entries.begin(), entries.end(),
                        [&](const auto& path) { return fs::is_directory(path, error); });
  for (const auto& path : entries) try {
      const auto back = to / path.filename();
      if (is_there(back) && fs::is_directory(fs::symlink_status(path, error)))
        move_back(path, back);
      else
        move_file(path, back);
    } catch (const IoError& stays) {
      log_warning(stays.what());
    }
  fs::remove(from, error);  // if it is empty
}

void try_remove(const fs::path& file) {
  std::error_code error;
  fs::remove(file, error);
}

void remove_empty_folders(const fs::path& folder) {
  std::error_code error;
  for (const auto& path : folder_entries(folder))
    if (fs::is_directory(fs::symlink_status(path, error))) remove_empty_folders(path);
  fs::remove(folder, error);
}

}  // namespace ddprun
