#include <ddprun/data/find_dataset.h>

#include <algorithm>
#include <cstdlib>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun::data {
namespace {

namespace fs = std::filesystem;

/// <prefix>/share/ddprun next to <prefix>/bin, where this program is.
fs::path own_share() {
  std::error_code unknown;
  const auto program = fs::read_symlink("/proc/self/exe", unknown);
  return program.parent_path().parent_path() / "share" / "ddprun";
}

/// Where data sets are looked for, in this order.
std::vector<fs::path> data_folders() {
  std::vector<fs::path> roots;
  if (const char* data = std::getenv("DDPRUN_DATA"); data != nullptr && *data != '\0')
    roots.emplace_back(data);
  roots.push_back(cache_folder() / "data");
  roots.emplace_back("/usr/share/datasets");
  roots.push_back(own_share());
  return roots;
}

}  // namespace

std::optional<fs::path> find_dataset(const std::string& name) {
  std::error_code unreadable;  // an unreadable folder counts as absent
  for (const auto& root : data_folders())
    if (fs::is_directory(root / name, unreadable)) return root / name;
  return std::nullopt;
}

fs::path find_data(const std::string& source, const std::vector<std::string>& names) {
  const bool is_name = std::ranges::find(names, source) != names.end();
  if (!source.empty() && !is_name) {
    if (std::error_code unknown; !fs::exists(source, unknown) && !unknown)
      throw UsageError("--data: expected a folder or " +
                       std::string(names.size() > 1 ? "one of the names " : "") + joined(names, ", ") +
                       ", got " + single_quoted(source));
    return source;
  }
  for (const auto& name : is_name ? std::vector{source} : names)
    if (const auto folder = find_dataset(name)) return *folder;
  const auto& name = is_name ? source : names.front();
  std::vector<std::string> folders;
  for (const auto& folder : data_folders()) folders.push_back(folder.string());
  throw UsageError("--data: no data set '" + name + "' in " + one_of(folders) + "; scripts/get_data.sh " +
                   name + " fetches it");
}

}  // namespace ddprun::data
