#include <ddprun/common/moved_files.h>

#include <algorithm>
#include <fstream>
#include <iterator>
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

bool leads_into(const fs::path& path, const fs::path& folder, const std::string& beginning) {
  std::error_code error;
  const auto inside =
      fs::weakly_canonical(path, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !inside.empty() && inside.begin()->string().starts_with(beginning);
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
    fs::copy(
        from, to,
        fs::copy_options::recursive | fs::copy_options::copy_symlinks | fs::copy_options::overwrite_existing,
        error);
    if (!error) fs::remove_all(from, error);
  }
  if (error) throw IoError(from, "cannot be moved to " + to.string(), error.value());
}

bool is_part_of(const fs::path& file, const fs::path& other) try {
  if (!fs::is_regular_file(fs::symlink_status(file)) || !fs::is_regular_file(fs::symlink_status(other)))
    return false;
  auto left = fs::file_size(file);
  if (left > fs::file_size(other)) return false;
  std::ifstream part(file, std::ios::binary), whole(other, std::ios::binary);
  using Bytes = std::istreambuf_iterator<char>;
  for (Bytes one(part), two(whole); left > 0 && one != Bytes() && two != Bytes() && *one == *two; --left)
    ++one, ++two;
  return left == 0;
} catch (const std::system_error& error) {
  throw IoError(file, "cannot be compared with " + other.string(), error.code().value());
}

bool move_back(const fs::path& from, const fs::path& to, const fs::path& last) {
  std::error_code error;
  bool all = true;
  for (const auto& path : folder_entries(from)) try {
      const auto back = to / path.filename();
      if (path.filename() == last) continue;
      if (is_there(back) && fs::is_directory(fs::symlink_status(path, error)))
        all = move_back(path, back) && all;
      else if (is_there(back) && is_part_of(path, back))
        fs::remove(path);
      else if (is_there(back) && !is_part_of(back, path))
        throw IoError(path, "stays, because " + back.string() + " is there, too");
      else
        move_file(path, back);
    } catch (const std::exception& stays) {
      log_warning(stays.what());
      all = false;
    }
  try {
    sync_folder(to);
    if (all && !last.empty() && is_there(from / last)) move_file(from / last, to / last);
  } catch (const IoError& stays) {
    log_warning(stays.what());
    all = false;
  }
  fs::remove(from, error);  // if it is empty
  return all;
}

fs::path link_above(const fs::path& folder, const fs::path& file, bool is_folder) {
  std::error_code error;
  for (auto in = is_folder ? file : file.parent_path(); !in.empty(); in = in.parent_path())
    if (fs::is_symlink(fs::symlink_status(folder / in, error))) return folder / in;
  return {};
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
