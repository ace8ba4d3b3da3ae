#include "launcher/host/cpu_list.h"

#include <algorithm>

namespace ddprun::launcher {

std::vector<std::string> number_ranges(const std::vector<int>& numbers) {
  std::vector<std::string> ranges;
  for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    ranges.push_back(std::to_string(numbers[begin]));
    if (end - begin > 1) ranges.back() += "-" + std::to_string(numbers[end - 1]);
  }
  return ranges;
}

std::string describe_cpus(const CpuList& cpus) {
  if (cpus.empty()) return "none";
  std::string text;
  for (const std::string& range : number_ranges(cpus)) text += (text.empty() ? "" : ",") + range;
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
