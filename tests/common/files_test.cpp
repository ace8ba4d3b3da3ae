#include <ddprun/common/files.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

using test::ContainsSubstring;

std::size_t entries_in(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator begin(folder);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

TEST_CASE("a file is read back as it was written", "[files]") {
  const TempDir folder;
  const std::string bytes("a\0b\xff\n", 5);
  write_file_atomic(folder.path() / "file", bytes);
  CHECK(read_file(folder.path() / "file") == bytes);
  write_file_atomic(folder.path() / "file", "");
  CHECK(read_file(folder.path() / "file").empty());
  CHECK(entries_in(folder.path()) == 1);
}

TEST_CASE("a write that fails leaves the old file and no other", "[files]") {
  const TempDir folder;
  const auto path = folder.path() / "file";
  write_file_atomic(path, "old");
  CHECK_THROWS_AS(replace_file_atomic(path,
                                      [](const std::filesystem::path& temporary) {
                                        write_file_atomic(temporary, "half");
                                        throw std::runtime_error("broken off");
                                      }),
                  std::runtime_error);
  CHECK(read_file(path) == "old");
  CHECK(entries_in(folder.path()) == 1);
}

TEST_CASE("what a killed process left of a write is removed, and nothing of one that lives", "[files]") {
  const TempDir dir;
  const auto file = dir.path() / "a.pt";
  const auto living = dir.path() / (".a.pt.tmp." + std::to_string(::getppid()));
  for (const auto& path : {dir.path() / ".a.pt.tmp.2147483647", living, dir.path() / ".a.pt.tmp.mine",
                           dir.path() / ".b.pt.tmp.2147483647", file})
    write_file_atomic(path, "x");
  remove_dead_temporaries(file);
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    left.insert(entry.path().filename().string());
  CHECK(left ==
        std::set<std::string>{"a.pt", ".a.pt.tmp.mine", ".b.pt.tmp.2147483647", living.filename().string()});
  remove_dead_temporaries("/nowhere/a.pt");
}

TEST_CASE("no file replaces a device or a pipe", "[files]") {
  const TempDir folder;
  const auto pipe = folder.path() / "pipe", link = folder.path() / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::create_symlink("/dev/null", link);
  for (const auto& path : {pipe, link})
    CHECK_THROWS_WITH(write_file_atomic(path, "text"), ContainsSubstring("is a device or a pipe"));
  CHECK(std::filesystem::is_fifo(pipe));
  CHECK(std::filesystem::is_symlink(link));
}

TEST_CASE("files that cannot be used throw IoError with path and errno", "[files]") {
  const TempDir folder;
  const auto missing = folder.path() / "no" / "file";
  CHECK_THROWS_AS(write_file_atomic(missing, "x"), IoError);
  CHECK_THROWS_AS(read_file(folder.path()), IoError);
  try {
    read_file(missing);
    FAIL("expected IoError");
  } catch (const IoError& error) {
    CHECK(error.path == missing);
    CHECK(error.error_number == ENOENT);
    CHECK_THAT(error.what(), ContainsSubstring(missing.string()));
  }
}

TEST_CASE("a file larger than allowed is refused", "[files]") {
  const TempDir folder;
  write_file_atomic(folder.path() / "file", "12345");
  CHECK(read_file(folder.path() / "file", 5) == "12345");
  CHECK_THROWS_AS(read_file(folder.path() / "file", 4), IoError);
}

TEST_CASE("a FIFO is read like a file, but one that nobody writes to is an error", "[files]") {
  const TempDir folder;
  const auto path = folder.path() / "fifo";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_file(path), path.string() + ": expected a file, got nothing to read in 5 s");
  std::thread writer([&] { std::ofstream(path) << "text"; });
  CHECK(read_file(path) == "text");
  writer.join();
}

TEST_CASE("only a regular file is opened, and nothing is waited for", "[files]") {
  const TempDir folder;
  write_file_atomic(folder.path() / "file", "x");
  CHECK(open_regular_file(folder.path() / "file"));
  REQUIRE(::mkfifo((folder.path() / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(open_regular_file(folder.path() / "fifo"),
                    (folder.path() / "fifo").string() + ": is a FIFO or a device, expected a regular file");
  CHECK_THROWS_WITH(open_regular_file("/dev/null"), ContainsSubstring("expected a regular file"));
  CHECK_THROWS_WITH(open_regular_file(folder.path()), ContainsSubstring("is a folder, expected a file"));
  CHECK_THROWS_WITH(open_regular_file(folder.path() / "none"), ContainsSubstring("No such file"));
}

TEST_CASE("part of a file is read at an offset, less of it at the end", "[files]") {
  const TempDir folder;
  write_file_atomic(folder.path() / "file", "abcdef");
  const UniqueFd fd = open_regular_file(folder.path() / "file");
  std::string bytes(4, '?');
  CHECK(read_at(fd, 1, bytes.data(), bytes.size(), "file") == 4);
  CHECK(bytes == "bcde");
  CHECK(read_at(fd, 4, bytes.data(), bytes.size(), "file") == 2);
  CHECK(bytes == "efde");
  CHECK(read_at(fd, 6, bytes.data(), bytes.size(), "file") == 0);
}

TEST_CASE("a temporary folder is private and goes with all it holds", "[files]") {
  std::filesystem::path path;
  {
    const TempDir folder("prefix");
    path = folder.path();
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0700);
    CHECK_THAT(path.filename().string(), ContainsSubstring("prefix"));
    std::filesystem::create_directories(path / "a" / "b");
    write_file_atomic(path / "a" / "b" / "file", "x");
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace ddprun

TEST_CASE("a temporary folder that cannot be made is refused by name", "[files]") {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "/tmp";
  ::setenv("TMPDIR", "/no/such/folder", 1);
  CHECK_THROWS_WITH(
      ddprun::TempDir(),
      "/no/such/folder: cannot create a temporary folder here ($TMPDIR): No such file or directory");
  ::setenv("TMPDIR", kept.c_str(), 1);
}
