#include "worker/data/locate.h"

#include <algorithm>
#include <cstdlib>

#include "common/errors.h"
#include "common/files.h"

namespace ddprun::data {

namespace fs = std::filesystem;

std::optional<fs::path> locate(const std::string& name) {
  std::vector<fs::path> roots;
  if (const char* data = std::getenv("DDPRUN_DATA"); data != nullptr && *data != '\0')
    roots.emplace_back(data);
  roots.push_back(cache_folder() / "data");
  roots.emplace_back("/usr/share/datasets");
  std::error_code unreadable;  // somebody else's folder holds nothing for us
  for (const auto& root : roots)
    if (fs::is_directory(root / name, unreadable)) return root / name;
  return std::nullopt;
}

fs::path find_data(const std::string& source, const std::vector<std::string>& names) {
  const bool is_name = std::find(names.begin(), names.end(), source) != names.end();
  if (!source.empty() && !is_name) return source;
  for (const auto& name : is_name ? std::vector{source} : names)
    if (const auto folder = locate(name)) return *folder;
  const auto& name = is_name ? source : names.front();
  throw UsageError("--data: data set '" + name + "' not found in $DDPRUN_DATA/" + name +
                   ", the cache folder's data/" + name + " or /usr/share/datasets/" + name +
                   "; expected it there (scripts/get_data.sh " + name +
                   " fetches it), or a folder with its files");
}

}  // namespace ddprun::data
