#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// The name of a job's temporary folder.
std::string temp_name(const std::string& job_id);

/// Marks a job's temporary folder as in use, for as long as the result is open.
UniqueFd mark_in_use(const std::filesystem::path& folder);

/// Removes the temporary folders of jobs whose ddprun was killed together with its guard: those of this user
/// that bear the mark, made since this machine was started, and that nobody holds. returns the jobs' ids
///
/// own  our job's folder, among them
std::vector<std::string> remove_leftovers(const std::filesystem::path& own);

}  // namespace ddprun::launcher
