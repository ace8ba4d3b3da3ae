#pragma once

#include <sched.h>

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// Numbers of CPUs as the kernel counts them (hardware threads), ascending, none twice.
using CpuList = std::vector<int>;

/// "0-3", "8" of ascending numbers.
std::vector<std::string> number_ranges(const std::vector<int>& numbers);

/// "0-3,8", as taskset and the kernel write it; "none" if there is none.
std::string describe_cpus(const CpuList& cpus);

/// A set for sched_setaffinity(pid, bytes(), data()). The plain cpu_set_t ends at CPU 1023, this does not.
class CpuSet {
 public:
  explicit CpuSet(const CpuList& cpus);
  const cpu_set_t* data() const { return reinterpret_cast<const cpu_set_t*>(words_.data()); }
  std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

}  // namespace ddprun::launcher
