#include "launcher/host/cpu_list.h"

#include <algorithm>

namespace ddprun::launcher {

std::string describe_cpus(const CpuList& cpus) {
  if (cpus.empty()) return "none";
  std::string text;
  for (std::size_t first = 0; first < cpus.size();) {
    std::size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[first]);
    if (last > first) text += '-' + std::to_string(cpus[last]);
    first = last + 1;
  }
  return text;
}

CpuSet::CpuSet(const CpuList& cpus) {
  const int highest = cpus.empty() ? 0 : *std::max_element(cpus.begin(), cpus.end());
  const std::size_t bytes = CPU_ALLOC_SIZE(std::max(highest + 1, CPU_SETSIZE));
  words_.resize(bytes / sizeof(unsigned long));
  for (const int cpu : cpus)
    CPU_SET_S(static_cast<std::size_t>(cpu), bytes, reinterpret_cast<cpu_set_t*>(words_.data()));
}

}  // namespace ddprun::launcher
