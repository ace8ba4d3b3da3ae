#pragma once

#include <sched.h>

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// CPU numbers of the kernel (hardware threads), ascending and unique.
using CpuList = std::vector<int>;

/// "0-3", "8" of ascending numbers.
std::vector<std::string> number_ranges(const std::vector<int>& numbers);

/// "0-3,8", as taskset and the kernel write it; "none" if empty.
std::string describe_cpus(const CpuList& cpus);

/// A set for sched_setaffinity(pid, bytes(), data()), not limited to 1024 CPUs as a plain cpu_set_t.
class CpuSet {
 public:
  explicit CpuSet(const CpuList& cpus);
  const cpu_set_t* data() const { return reinterpret_cast<const cpu_set_t*>(words_.data()); }
  std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

}  // namespace ddprun::launcher
