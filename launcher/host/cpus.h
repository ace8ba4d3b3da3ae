#pragma once

#include <sched.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// CPU numbers of the kernel (hardware threads), ascending and unique.
using CpuList = std::vector<int>;

/// "0-3", "8" for ascending numbers.
std::vector<std::string> number_ranges(const std::vector<int>& numbers);

/// "0-3,8", as taskset and the kernel write it; "none" if empty.
std::string describe_cpus(const CpuList& cpus);

/// The CPUs in both lists.
CpuList common_cpus(const CpuList& a, const CpuList& b);

/// A set for sched_setaffinity(pid, bytes(), data()), not limited to 1024 CPUs like a plain cpu_set_t.
class CpuSet {
 public:
  explicit CpuSet(const CpuList& cpus);
  const cpu_set_t* data() const { return reinterpret_cast<const cpu_set_t*>(words_.data()); }
  std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }

 private:
  std::vector<unsigned long> words_;
};

/// A NUMA node that has CPUs.
struct NumaNode {
  int index = 0;         ///< the kernel's index
  CpuList cpus;          ///< the allowed ones; may be empty
  CpuList package_cpus;  ///< the allowed ones of its package or packages
};

/// How the CPUs that this process may use are grouped. Only `nodes` includes groups without an allowed CPU.
struct CpuMap {
  std::vector<NumaNode> nodes;    ///< of the whole host
  std::vector<CpuList> packages;  ///< sockets
  std::vector<CpuList> caches;    ///< sharing the outermost cache, usually L3
  std::vector<CpuList> cores;     ///< physical cores, in topology order
};

/// Asks hwloc, which is loaded only here because loading takes longer than starting a job. Honours hwloc's
/// variables (HWLOC_SYNTHETIC, HWLOC_XMLFILE). A level that hwloc does not report, such as caches in a
/// virtual machine, falls back to the next larger one.
///
/// library    its name, for tests
/// throws     UsageError if hwloc is not installed or has another major version
CpuMap read_cpu_map(const CpuList& allowed, const char* library = "libhwloc.so.15");

/// The path of this process's cgroup for this version 1 controller, or in version 2 for ""; empty if none.
///
/// cgroups  the text of /proc/self/cgroup
std::string own_cgroup(const std::string& cgroups, const std::string& controller);

/// Whether a comma-separated list contains the word.
bool has_word(const std::string& list, const std::string& word);

/// The CPU time that cgroups (v1 and v2) allow this process, in CPUs: the smallest quota / period from its
/// own cgroup up to the highest visible one. nullopt without a quota.
///
/// root    of the file system, for tests
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace ddprun::launcher
