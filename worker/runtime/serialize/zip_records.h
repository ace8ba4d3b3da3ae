#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

struct zip;

namespace ddprun::serialize {

/// The records of a zip archive as written by torch.save: uncompressed, in a single folder, each verified by
/// CRC-32 when read. All functions throw IoError naming the archive.
class ZipRecords {
 public:
  explicit ZipRecords(const std::filesystem::path& path);

  /// name  without the folder: "data.pkl"
  bool has(const std::string& name) const { return records_.contains(name); }
  std::uint64_t size(const std::string& name) { return record(name).size; }
  std::string read(const std::string& name);
  void read(const std::string& name, void* bytes);  ///< size(name) bytes

  /// Reads the remaining records to verify their CRC-32.
  void verify_unread();

 private:
  struct Close {
    void operator()(zip* archive) const;
  };
  struct Record {
    std::uint64_t index;
    std::uint64_t size;
    bool verified = false;
  };
  [[noreturn]] void fail(const std::string& message) const;
  Record& record(const std::string& name);
  void list_records();
  template <typename Sink>
  void read_record(const std::string& name, Record& record, Sink sink);

  std::filesystem::path path_;
  std::unique_ptr<zip, Close> archive_;
  std::map<std::string, Record> records_;
};

}  // namespace ddprun::serialize
