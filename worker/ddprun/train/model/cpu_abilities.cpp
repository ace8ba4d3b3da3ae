#include <ddprun/train/model/cpu_abilities.h>

#include <fstream>

#include <ddprun/common/text.h>

namespace ddprun::train {

std::set<std::string> cpu_abilities() {
  const std::set<std::string> known = {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16"};
  std::set<std::string> found;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; found.empty() && std::getline(file, line);)
    if (line.starts_with("flags") || line.starts_with("Features"))
      for (const auto& word : split(line, ' '))
        if (known.contains(word)) found.insert(word);
  return found;
}

}  // namespace ddprun::train
