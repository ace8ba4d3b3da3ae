#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// The names in a Slurm host list, in order: "n[1-3,7],gpu-[001-010]-ib,x". Numbers have as many digits as
/// the first of their range; if a name has several brackets, the last one counts fastest. none: not such a
/// list, or more than max_names
std::optional<std::vector<std::string>> expand_host_list(const std::string& text, std::size_t max_names);

/// The numbers in a Slurm task count: "2(x3),1" is 2, 2, 2, 1. none: not such a list, more than max_numbers,
/// or a number that is not from 1 to a million
std::optional<std::vector<int>> expand_counts(const std::string& text, std::size_t max_numbers);

}  // namespace ddprun::launcher
