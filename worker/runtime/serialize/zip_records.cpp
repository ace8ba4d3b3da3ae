#include <ddprun/serialize/zip_records.h>

#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>

namespace ddprun::serialize {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;

struct CloseFile {
  void operator()(zip_file* file) const { zip_fclose(file); }
};

std::string describe(int code) {
  zip_error error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

}  // namespace

void ZipRecords::Close::operator()(zip* archive) const { zip_discard(archive); }

ZipRecords::ZipRecords(const std::filesystem::path& path) : path_(path) {
  int code = 0;
  errno = 0;
  archive_.reset(zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
  if (archive_ == nullptr && (code == ZIP_ER_OPEN || code == ZIP_ER_READ || code == ZIP_ER_NOENT))
    throw IoError(path, "cannot read", errno);
  if (archive_ == nullptr) fail(describe(code));
  list_records();
}

void ZipRecords::fail(const std::string& message) const {
  throw IoError(path_, "damaged, expected the intact zip archive that torch.save writes: " + message);
}

void ZipRecords::list_records() {
  std::error_code error;
  // Records are uncompressed and do not overlap, so memory for them stays within the file's size.
  auto left = static_cast<std::uint64_t>(std::filesystem::file_size(path_, error));
  if (error) throw IoError(path_, "cannot stat", error.value());
  std::string folder;
  const auto count = static_cast<std::uint64_t>(zip_get_num_entries(archive_.get(), 0));
  for (std::uint64_t index = 0; index < count; ++index) {
    zip_stat_t info;
    zip_stat_init(&info);
    constexpr auto kNeeded =
        ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_CRC | ZIP_STAT_COMP_METHOD;
    if (zip_stat_index(archive_.get(), index, ZIP_FL_ENC_RAW, &info) != 0 ||
        (info.valid & kNeeded) != kNeeded)
      fail("no description of record " + std::to_string(index));
    const std::string path = info.name;
    if (info.comp_method != ZIP_CM_STORE || info.comp_size != info.size)
      fail("record " + in_quotes(path) + " is compressed, expected a stored one");
    if (info.size > left) fail("record " + in_quotes(path) + " reaches beyond the file");
    left -= info.size;
    const auto slash = path.find('/');
    if (index == 0 && slash != std::string::npos) folder = path.substr(0, slash + 1);
    if (folder.empty() || !path.starts_with(folder))
      fail("record " + in_quotes(path) + " is not in the one folder");
    if (!records_.emplace(path.substr(folder.size()), Record{index, info.size}).second)
      fail("two records " + in_quotes(path));
  }
}

ZipRecords::Record& ZipRecords::record(const std::string& name) {
  const auto found = records_.find(name);
  if (found == records_.end()) fail("no record " + in_quotes(name));
  return found->second;
}

/// Calls sink(offset) to learn where to put the next bytes, until the record's end. libzip checks the CRC-32
/// when asked for more after the last byte.
template <typename Sink>
void ZipRecords::read_record(const std::string& name, Record& record, Sink sink) {
  const std::unique_ptr<zip_file, CloseFile> file(zip_fopen_index(archive_.get(), record.index, 0));
  if (file == nullptr) fail("record " + in_quotes(name) + ": " + zip_strerror(archive_.get()));
  std::uint64_t at = 0;
  char beyond = 0;
  for (;;) {
    const auto wanted = std::min(kChunk, record.size - at);
    const auto count = zip_fread(file.get(), wanted > 0 ? sink(at) : &beyond, wanted > 0 ? wanted : 1);
    if (count < 0) fail("record " + in_quotes(name) + ": " + zip_file_strerror(file.get()));
    if (count == 0 && wanted == 0) break;
    if (count == 0 || wanted == 0) fail("record " + in_quotes(name) + " has another size than it says");
    at += static_cast<std::uint64_t>(count);
  }
  record.verified = true;
}

void ZipRecords::read(const std::string& name, void* bytes) {
  read_record(name, record(name), [&](std::uint64_t at) { return static_cast<char*>(bytes) + at; });
}

std::string ZipRecords::read(const std::string& name) {
  std::string bytes(size(name), '\0');
  read(name, bytes.data());
  return bytes;
}

void ZipRecords::verify_unread() {
  std::vector<char> scratch(kChunk);
  for (auto& [name, record] : records_)
    if (!record.verified) read_record(name, record, [&](std::uint64_t) { return scratch.data(); });
}

}  // namespace ddprun::serialize
