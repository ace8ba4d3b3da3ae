#include <ddprun/train/state/run_folder.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <random>
#include <ranges>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kList = "run.json";
constexpr std::string_view kShardsEnd = ".shards";

bool is_there(const fs::path& path) {
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (status.type() != fs::file_type::none) return fs::exists(status);
  throw IoError(path, "cannot be looked up", error.value());
}

bool is_checkpoint(const std::string& name) { return name.starts_with("checkpoints/"); }

std::string random_hex() { return formatted("%08x", static_cast<unsigned>(std::random_device()())); }

/// A name beside the path that is free: last-earlier.pt, last-earlier-v1.pt, ...
fs::path free_path(const fs::path& path, const std::string& addition) {
  const auto stem = path.parent_path() / (path.stem().string() + addition);
  const auto extension = path.extension().string();
  fs::path free = stem.string() + extension;
  for (int version = 1; is_there(free); ++version)
    free = stem.string() + "-v" + std::to_string(version) + extension;
  return free;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  return {fs::directory_iterator(folder, error), fs::directory_iterator()};
}

std::vector<fs::path> contents(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (!entry->is_directory(error)) files.push_back(entry->path());
  return files;
}

void move_file(const fs::path& from, const fs::path& to) {
  create_folders(to.parent_path());
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw IoError(from, "cannot be moved to " + to.string(), error.value());
}

}  // namespace

std::string shards_name(const fs::path& checkpoint, std::int64_t step, const RunIdentity& identity) {
  return checkpoint.stem().string() + "-step=" + std::to_string(step) + "-" + identity.run + "-" +
         random_hex().substr(4) + std::string(kShardsEnd);
}

bool is_shards_of(const std::string& run, const fs::path& shards) {
  return shards.extension() == kShardsEnd && !run.empty() &&
         shards.filename().string().find("-" + run + "-") != std::string::npos;
}

RunFolder::RunFolder(fs::path folder) : folder_(std::move(folder)) {
  const auto list = folder_ / kList;
  if (!is_there(list)) return;
  try {
    const auto json = nlohmann::json::parse(read_file(list));
    identity_.run = json.at("run");
    files_ = json.at("files").get<std::map<std::string, std::int64_t>>();
    replaced_ = json.value("replaced", std::vector<std::string>());
    writing_ = json.value("writing", "");
  } catch (const nlohmann::json::exception&) {
    throw IoError(list,
                  "is not the list of a run's files; if you delete it, no file here counts as the run's");
  }
  identity_.branch = 1;
  for (const auto& [name, branch] : files_) identity_.branch = std::max(identity_.branch, branch);
}

RunIdentity RunFolder::identity() const {
  const std::lock_guard lock(mutex_);
  return identity_;
}

std::string RunFolder::name_of(const fs::path& file) const {
  const auto whole = [](const fs::path& path) { return fs::absolute(path).lexically_normal(); };
  return whole(file).lexically_relative(whole(folder_)).string();
}

std::int64_t RunFolder::branch_of(const fs::path& file) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(name_of(file));
  return found == files_.end() ? 0 : found->second;
}

std::vector<fs::path> RunFolder::files() const {
  const std::lock_guard lock(mutex_);
  std::vector<fs::path> all;
  for (const auto& [name, branch] : files_) all.push_back(folder_ / name);
  return all;
}

fs::path RunFolder::in_the_way(const std::vector<std::string>& names, bool goes_on) const {
  for (const auto& name : names)
    if (!files_.contains(name) && is_there(folder_ / name)) return folder_ / name;
  if (goes_on) return {};
  for (const char* name : {"metrics.csv", "summary.json"})
    if (is_there(folder_ / name)) return folder_ / name;
  std::error_code error;
  const fs::directory_iterator first(checkpoints(), error);
  if (error && error != std::errc::no_such_file_or_directory)
    throw IoError(checkpoints(), "cannot be listed", error.value());
  return !error && first != fs::directory_iterator() ? first->path() : fs::path();
}

void RunFolder::begin(const std::vector<std::string>& names) {
  const bool has_checkpoint = std::ranges::any_of(
      files_, [&](const auto& file) { return is_checkpoint(file.first) && is_there(folder_ / file.first); });
  if (identity_.run.empty() || has_checkpoint) {
    set_aside(names);
    identity_ = {random_hex(), 1};
    files_.clear();
  } else {
    auto foreign = names;
    std::erase_if(foreign, [&](const auto& name) { return files_.contains(name); });
    move_to("earlier", {foreign.begin(), foreign.end()});
  }
  save();
}

/// A run with its list, so that it is still whole; or what looks like a run of an older version.
void RunFolder::set_aside(const std::vector<std::string>& names) {
  std::set<fs::path> all(names.begin(), names.end());
  for (const auto& [name, branch] : files_) all.insert(name);
  for (const auto& state : state_files(*this)) {
    if (state.identity.run != identity_.run || (identity_.run.empty() && !state.problem.empty())) continue;
    all.insert(name_of(state.path));
    if (!state.shards.empty()) all.insert(name_of(state.path.parent_path() / state.shards));
  }
  if (identity_.run.empty()) {
    move_to("earlier", std::move(all));
  } else {
    all.insert(kList);
    replaced_.push_back(move_to(identity_.run, std::move(all)).filename());
  }
}

/// returns  the new folder
fs::path RunFolder::move_to(const std::string& run, std::set<fs::path> names) {
  std::erase_if(names, [&](const auto& name) { return !is_there(folder_ / name); });
  if (names.empty()) return {};
  const auto to = free_path(folder_ / ("replaced-" + run), "");
  const auto move = [&](const fs::path& name) { move_file(folder_ / name, to / name); };
  const auto sync = [&] {
    sync_folder(to);
    sync_folder(folder_);
  };
  // First: without the list, what is left of the run is still read; with it, what is gone is missed.
  if (names.erase(kList) > 0) {
    move(kList);
    sync();
  }
  if (std::ranges::any_of(names, is_checkpoint)) {
    try {
      move("checkpoints");  // all at once, so that no power failure leaves half a state
    } catch (const IoError&) {
      if (is_there(to / kList)) move_file(to / kList, folder_ / kList);
      throw;
    }
    for (const auto& path : entries(to / "checkpoints"))
      if (const auto name = "checkpoints" / path.filename();
          !names.contains(name) && !is_shards_of(identity_.run, name))
        move_file(path, folder_ / name);
    create_folders(checkpoints());
    std::erase_if(names, is_checkpoint);
  }
  for (const auto& name : names) move(name);
  sync();
  log_info("the earlier run's files are in " + to.string() +
           (run == "earlier" ? "" : " until this run has its first checkpoint"));
  return to;
}

void RunFolder::resume(const RunIdentity& state, bool is_newest, const std::vector<std::string>& names) {
  if (identity_.run.empty()) {
    identity_ = {random_hex(), 1};
    for (const auto& name : names)
      if (is_there(folder_ / name)) files_[name] = 1;
  } else if (state != identity_ || !is_newest) {
    ++identity_.branch;
  }
  // A killed run may not have listed its last one.
  for (const auto& found : state_files(*this))
    if (found.identity.run == identity_.run && found.problem.empty())
      files_.try_emplace(name_of(found.path), found.identity.branch);
  save();
}

/// On a full disk it is written with the next change; the run goes on.
void RunFolder::save() {
  auto json = nlohmann::ordered_json{{"run", identity_.run}, {"files", files_}};
  if (!replaced_.empty()) json["replaced"] = replaced_;
  if (!writing_.empty()) json["writing"] = writing_;
  const auto text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  try {
    write_file_atomic(folder_ / kList, text);
    unsaved_ = false;
  } catch (const IoError& error) {
    if (error.error_number != ENOSPC && error.error_number != EDQUOT) throw;
    if (!std::exchange(unsaved_, true)) log_warning(std::string(error.what()) + "; the training continues");
  }
}

void RunFolder::check(const fs::path& file) const {
  if (!files_.contains(name_of(file)) && is_there(file))
    throw IoError(file, "was not written by this run, which leaves it alone; move it, or use another --out");
}

void RunFolder::claim(const fs::path& file) {
  const std::lock_guard lock(mutex_);
  check(file);
  if (is_of_this_branch(file)) return;
  if (file.stem() == "metrics") keep_earlier(file);
  files_[name_of(file)] = identity_.branch;
  save();
}

void RunFolder::check_contents(const fs::path& folder) const {
  const std::lock_guard lock(mutex_);
  for (const auto& file : contents(folder)) check(file);
}

void RunFolder::claim_contents(const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  for (const auto& file : contents(folder)) files_[name_of(file)] = identity_.branch;
  save();
}

void RunFolder::make_way(const fs::path& checkpoint) {
  const std::lock_guard lock(mutex_);
  if (is_of_this_branch(checkpoint)) return;
  keep_earlier(checkpoint);
  writing_ = name_of(checkpoint);
  files_.erase(writing_);
  save();
}

bool RunFolder::is_of_this_branch(const fs::path& file) const {
  const auto found = files_.find(name_of(file));
  return found != files_.end() && found->second == identity_.branch;
}

/// Under another name.
void RunFolder::keep_earlier(const fs::path& file) {
  if (!is_there(file)) return;
  const auto found = files_.find(name_of(file));
  const bool is_listed = found != files_.end();
  const auto kept =
      free_path(file, is_listed ? "-branch=" + std::to_string(found->second) : std::string("-earlier"));
  if (is_listed) files_[name_of(kept)] = found->second;
  try {
    if (is_checkpoint(name_of(file))) {
      fs::create_hard_link(file, kept);  // so that it never is without a name
    } else {
      save();
      write_file_atomic(kept, read_file(file));  // the run goes on in the file
    }
  } catch (const std::exception&) {
    move_file(file, kept);
  }
  sync_folder(kept.parent_path());
}

void RunFolder::wrote(const fs::path& checkpoint, const std::vector<fs::path>& doomed) {
  const std::lock_guard lock(mutex_);
  auto others = doomed;
  std::erase(others, checkpoint);
  writing_.clear();
  const bool is_new = files_.insert_or_assign(name_of(checkpoint), identity_.branch).second;
  remove_listed(others, is_new);
}

void RunFolder::remove(const std::vector<fs::path>& files) {
  const std::lock_guard lock(mutex_);
  remove_listed(files, /*list_changed=*/false);
}

void RunFolder::remove_listed(std::vector<fs::path> files, bool list_changed) {
  std::erase_if(files, [&](const auto& file) { return files_.erase(name_of(file)) == 0; });
  if (list_changed || unsaved_ || !files.empty()) save();
  for (const auto& file : files) {
    std::error_code error;
    if (!fs::remove(file, error) && error)
      throw IoError(file, "cannot delete this replaced checkpoint", error.value());
  }
}

void RunFolder::remove_replaced() {
  const std::lock_guard lock(mutex_);
  for (const auto& name : replaced_)
    if (is_there(folder_ / name / kList)) RunFolder(folder_ / name).remove_all();
  if (!std::exchange(replaced_, {}).empty()) save();
}

/// And the folders that are then empty.
void RunFolder::remove_all() const {
  std::error_code error;
  for (const auto& shards : shard_folders(checkpoints()))
    if (is_shards_of(identity_.run, shards)) fs::remove_all(shards, error);
  std::set<fs::path> folders = {folder_};
  for (const auto& [name, branch] : files_) {
    fs::remove(folder_ / name, error);
    for (auto at = (folder_ / name).parent_path(); at != folder_ && at.has_relative_path();
         at = at.parent_path())
      folders.insert(at);
  }
  fs::remove(folder_ / kList, error);
  for (const auto& empty : folders | std::views::reverse) fs::remove(empty, error);
}

/// As replace_file_atomic() names it.
bool RunFolder::owns_temporary(const fs::path& file) const {
  const auto name = file.filename().string();
  const auto at = name.rfind(".tmp.");
  if (!name.starts_with('.') || at == std::string::npos || at + 5 == name.size() ||
      name.find_first_not_of("0123456789", at + 5) != std::string::npos)
    return false;
  const auto of = name.substr(1, at - 1);
  const auto written = name_of(file.parent_path() / of);
  return of == kList || written == writing_ || files_.contains(written);
}

}  // namespace ddprun::train
