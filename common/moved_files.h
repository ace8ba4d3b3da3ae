#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ddprun {

/// A link counts whether it leads anywhere or not. throws IoError if that cannot be told
bool is_there(const std::filesystem::path& path);

/// A folder's, as far as it can be read.
std::vector<std::filesystem::path> folder_entries(const std::filesystem::path& folder);

/// Whether a path, its links followed, is a folder in this one whose name begins so, or lies in such a
/// folder.
bool leads_into(const std::filesystem::path& path, const std::filesystem::path& folder,
                const std::string& beginning);

/// A link in place of a folder in which the file would be; empty: there is none. Others may use what it leads
/// to.
///
/// file       relative to the folder
/// is_folder  the file is itself one
std::filesystem::path link_above(const std::filesystem::path& folder, const std::filesystem::path& file,
                                 bool is_folder = false);

/// A name beside the path that is free: last-earlier.pt, last-earlier-v1.pt, ...
std::filesystem::path free_path(const std::filesystem::path& path, const std::string& addition);

/// Of those that free_path() has made: the path itself, or the last -vN.
std::filesystem::path newest_version(const std::filesystem::path& path);

/// A file or a folder, to another disk as well. throws IoError
void move_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// Whether the bytes of a file are there, at the beginning of the other one, too. throws IoError
bool is_part_of(const std::filesystem::path& file, const std::filesystem::path& other);

/// All that is in a folder, into folders that are there already as well; needs no room on a full disk. Of a
/// file that is there, too, and a part of the other, the longer one stays: a move to another disk was
/// interrupted. Warns of what stays.
///
/// last     moves once everything else is on the disk, if nothing stays
/// returns  whether all has moved
bool move_back(const std::filesystem::path& from, const std::filesystem::path& to,
               const std::filesystem::path& last = {});

/// A file, if it is there and can be removed.
void try_remove(const std::filesystem::path& file);

/// Also those in it.
void remove_empty_folders(const std::filesystem::path& folder);

}  // namespace ddprun
