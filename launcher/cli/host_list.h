#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// The names in a list of Slurm's, in its order: "n[1-3,7],gpu-[001-010]-ib,x". Numbers have as many digits
/// as the first of their range; of several brackets in a name the last one counts fastest. none: no such
/// list, or one of more than max_names
std::optional<std::vector<std::string>> expand_host_list(const std::string& text, std::size_t max_names);

/// The numbers in a list of Slurm's: "2(x3),1" is 2, 2, 2, 1. none: no such list, one of more than
/// max_numbers, or one with a number that is not from 1 to a million
std::optional<std::vector<int>> expand_counts(const std::string& text, std::size_t max_numbers);

}  // namespace ddprun::launcher
