#include <ddprun/data/dataset_files.h>

#include <libdeflate.h>
#include <sys/stat.h>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>

namespace ddprun::data {
namespace {

namespace fs = std::filesystem;

/// <prefix>/share/ddprun next to <prefix>/bin, where this program is.
fs::path own_share() {
  std::error_code unknown;
  const auto program = fs::read_symlink("/proc/self/exe", unknown);
  return program.parent_path().parent_path() / "share" / "ddprun";
}

/// Where data sets are looked for, in this order.
std::vector<fs::path> data_folders() {
  std::vector<fs::path> roots;
  if (const char* data = std::getenv("DDPRUN_DATA"); data != nullptr && *data != '\0')
    roots.emplace_back(data);
  roots.push_back(cache_folder() / "data");
  roots.emplace_back("/usr/share/datasets");
  roots.push_back(own_share());
  return roots;
}

}  // namespace

std::optional<fs::path> find_dataset(const std::string& name) {
  std::error_code unreadable;  // an unreadable folder counts as absent
  for (const auto& root : data_folders())
    if (fs::is_directory(root / name, unreadable)) return root / name;
  return std::nullopt;
}

fs::path find_data(const std::string& source, const std::vector<std::string>& names) {
  const bool is_name = std::ranges::find(names, source) != names.end();
  if (!source.empty() && !is_name) {
    if (std::error_code unknown; !fs::exists(source, unknown) && !unknown)
      throw UsageError("--data: expected a folder or " +
                       std::string(names.size() > 1 ? "one of the names " : "") + joined(names, ", ") +
                       ", got " + single_quoted(source) + settings::did_you_mean(lower_case(source), names));
    return source;
  }
  for (const auto& name : is_name ? std::vector{source} : names)
    if (const auto folder = find_dataset(name)) return *folder;
  const auto& name = is_name ? source : names.front();
  std::vector<std::string> folders;
  for (const auto& folder : data_folders()) folders.push_back(folder.string());
  throw UsageError("--data: no data set '" + name + "' in " + one_of(folders) + "; scripts/get_data.sh " +
                   name + " fetches it");
}

namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{8} << 30;  // far above any real file
constexpr std::int64_t kLikelyRatio = 64;                  // a damaged file may claim more

at::Tensor read_bytes(const fs::path& path) {
  const UniqueFd fd = open_regular_file(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw IoError(path, "cannot read", errno);
  if (info.st_size > kMaxBytes) throw IoError(path, "is larger than 8 GiB");
  auto bytes = at::empty({info.st_size}, at::kByte);
  const auto done = read_at(fd, 0, bytes.mutable_data_ptr(), bytes.nbytes(), path);
  return bytes.narrow(0, 0, static_cast<std::int64_t>(done));  // fewer: it has just become shorter
}

/// What the end of a gzip file says of its last member's size, unless that cannot be.
std::int64_t likely_size(const std::uint8_t* file, std::int64_t size) {
  std::int64_t said = 0;
  for (int i = 1; i <= 4 && i <= size; ++i) said = said << 8 | file[size - i];
  return std::clamp<std::int64_t>(said, 1, std::min(size * kLikelyRatio, kMaxBytes));
}

/// The next bytes of a file's content; throws if it ends too early.
torch::Tensor take(torch::Tensor& content, const fs::path& path, std::int64_t size, const std::string& what) {
  const auto left = content.numel();
  if (left < size)
    throw IoError(path, c10::str("is cut: expected ", size, " bytes of ", what, ", got ", left));
  const auto taken = content.narrow(0, 0, size);
  content = content.narrow(0, size, left - size);
  return taken;
}

std::uint32_t big_endian(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
         bytes[3];
}

/// NAME or NAME.gz in the folder.
fs::path find_idx(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (const auto& path : {folder / name, folder / (name + ".gz")}) {
    if (fs::exists(path, error)) return path;
    if (error) throw IoError(path, "cannot be looked up", error.value());
  }
  if (!fs::is_directory(folder, error))
    throw IoError(folder, "no such folder; expected one with " + name + "[.gz]");
  throw IoError(folder / name, "no such file, with or without .gz");
}

}  // namespace

at::Tensor read_plain_or_gzip(const fs::path& path) {
  const auto file = read_bytes(path);
  const auto* from = file.const_data_ptr<std::uint8_t>();
  if (file.numel() < 2 || from[0] != 0x1f || from[1] != 0x8b) return file;
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(
      ::libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  if (!decompressor) throw std::bad_alloc();
  auto content = at::empty({likely_size(from, file.numel())}, at::kByte);
  std::int64_t read = 0, written = 0;
  while (read < file.numel()) {
    std::size_t taken = 0, got = 0;
    const auto result = ::libdeflate_gzip_decompress_ex(
        decompressor.get(), from + read, static_cast<std::size_t>(file.numel() - read),
        content.data_ptr<std::uint8_t>() + written, static_cast<std::size_t>(content.numel() - written),
        &taken, &got);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE) {  // several gzip files, one after the other
      if (content.numel() >= kMaxBytes) throw IoError(path, "decompresses to more than 8 GiB");
      content.resize_({std::min(2 * content.numel(), kMaxBytes)});
    } else if (result == LIBDEFLATE_SUCCESS) {
      read += static_cast<std::int64_t>(taken);
      written += static_cast<std::int64_t>(got);
    } else {
      throw IoError(path, "is not a complete gzip file: truncated or damaged");
    }
  }
  return content.narrow(0, 0, written);
}

torch::Tensor read_idx(const fs::path& path, int dimensions) {
  auto content = read_plain_or_gzip(path);
  const auto next_number = [&] {
    return big_endian(take(content, path, 4, "header").const_data_ptr<std::uint8_t>());
  };
  const auto magic = next_number();
  const std::uint32_t expected = 0x800u + static_cast<std::uint32_t>(dimensions);
  if (magic != expected)
    throw IoError(path, "expected magic number " + std::to_string(expected) + " (IDX of unsigned bytes, " +
                            std::to_string(dimensions) + "-dimensional), got " + std::to_string(magic));
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 1;  // a size of 0 counts as 1, so the other sizes are still checked
  for (int i = 0; i < dimensions; ++i) {
    shape.push_back(next_number());
    const auto factor = std::max<std::int64_t>(1, shape.back());
    if (bytes > kMaxBytes / factor) throw IoError(path, "has a header that asks for more than 8 GiB");
    bytes *= factor;
  }
  const auto values = take(content, path, c10::multiply_integers(shape), "values").view(shape);
  if (content.numel() > 0) throw IoError(path, "has more bytes than its header announces");
  return values;
}

Images read_mnist(const fs::path& folder, Part part, std::int64_t limit) {
  const std::string stem = part == Part::kTrain ? "train" : "t10k";
  const auto image_path = find_idx(folder, stem + "-images-idx3-ubyte");
  const auto label_path = find_idx(folder, stem + "-labels-idx1-ubyte");
  auto images_NHW = read_idx(image_path, 3);
  if (images_NHW.size(1) != 28 || images_NHW.size(2) != 28)
    throw IoError(image_path, "expected images of 28 x 28, got " + std::to_string(images_NHW.size(1)) +
                                  " x " + std::to_string(images_NHW.size(2)));
  if (images_NHW.size(0) == 0) throw IoError(image_path, "holds no images");
  auto labels = read_idx(label_path, 1);
  if (labels.size(0) != images_NHW.size(0))
    throw IoError(label_path, "expected " + std::to_string(images_NHW.size(0)) +
                                  " labels, one per image, got " + std::to_string(labels.size(0)));
  if (const int largest = labels.max().item<int>(); largest > 9)
    throw IoError(label_path, "expected labels from 0 to 9, got " + std::to_string(largest));
  if (limit > 0 && limit < images_NHW.size(0)) {
    images_NHW = images_NHW.slice(0, 0, limit).clone();
    labels = labels.slice(0, 0, limit);
  }
  return {images_NHW.unsqueeze(1), labels.to(torch::kInt64)};
}

namespace {

constexpr std::int64_t kSide = 32;
constexpr std::int64_t kImageBytes = 3 * kSide * kSide;
constexpr std::int64_t kRecordBytes = 1 + kImageBytes;
constexpr const char* kSubfolder = "cifar-10-batches-bin";

struct RecordFile {
  fs::path path;
  UniqueFd fd;
  std::int64_t records;
};

/// The folder, or the subfolder that the archive unpacks to.
fs::path folder_with(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (const auto& candidate : {folder, folder / kSubfolder})
    if (fs::exists(candidate / name, error)) return candidate;
  if (!fs::is_directory(folder, error))
    throw IoError(folder, "no such folder; expected one with CIFAR-10's " + name);
  for (const auto& candidate : {folder, folder / "cifar-10-batches-py"})
    if (fs::exists(candidate / "batches.meta", error))
      throw IoError(candidate, "holds CIFAR-10's Python version, expected the binary version (" + name + ")");
  throw IoError(folder / name, std::string("no such file, here or in ") + kSubfolder + "/");
}

RecordFile open_records(const fs::path& path) {
  auto fd = open_regular_file(path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw IoError(path, "cannot be looked up", errno);
  const std::int64_t size = status.st_size;
  if (size == 0 || size % kRecordBytes != 0)
    throw IoError(path, c10::str("expected records of ", kRecordBytes, " bytes, got ", size / kRecordBytes,
                                 " of them and ", size % kRecordBytes, " more bytes"));
  return {path, std::move(fd), size / kRecordBytes};
}

std::vector<RecordFile> open_part(const fs::path& folder, Part part) {
  std::vector<std::string> names = {"test_batch.bin"};
  if (part == Part::kTrain) {
    names.clear();
    for (int i = 1; i <= 5; ++i) names.push_back("data_batch_" + std::to_string(i) + ".bin");
  }
  const auto found = folder_with(folder, names.front());
  std::vector<RecordFile> files;
  for (const auto& name : names) {
    files.push_back(open_records(found / name));
    if (files.back().records != files.front().records)
      throw IoError(files.back().path, c10::str("expected ", files.front().records, " records, as many as ",
                                                names.front(), " has, got ", files.back().records));
  }
  return files;
}

/// Reads the file's first records, and their labels: the first byte of each.
void read_records(const RecordFile& file, std::int64_t count, std::uint8_t* records, std::int64_t* labels) {
  const auto size = static_cast<std::size_t>(count * kRecordBytes);
  const auto done = read_at(file.fd, 0, records, size, file.path);
  if (done != size) throw IoError(file.path, c10::str("is cut: expected ", size, " bytes, got ", done));
  for (std::int64_t i = 0; i < count; ++i) {
    labels[i] = records[i * kRecordBytes];
    if (labels[i] > 9)
      throw IoError(file.path, c10::str("record ", i, ": expected a label from 0 to 9, got ", labels[i]));
  }
}

}  // namespace

Images read_cifar10(const fs::path& folder, Part part, std::int64_t limit) {
  const auto files = open_part(folder, part);
  auto size = static_cast<std::int64_t>(files.size()) * files.front().records;
  if (limit > 0) size = std::min(size, limit);
  // Records stay as in the file, so nothing is copied: an image is a record without its first byte.
  const auto records = torch::empty({size, kRecordBytes}, torch::kUInt8);
  const auto labels = torch::empty({size}, torch::kInt64);
  std::int64_t done = 0;
  for (const auto& file : files) {
    const auto count = std::min(file.records, size - done);
    read_records(file, count, records.mutable_data_ptr<std::uint8_t>() + done * kRecordBytes,
                 labels.mutable_data_ptr<std::int64_t>() + done);
    done += count;
  }
  return {records.slice(1, 1).unflatten(1, {3, kSide, kSide}), labels};
}

namespace {

constexpr std::size_t kShown = 40;  // characters of an invalid value in a message
constexpr std::string_view kSpaces = " \t\r";

/// The whole text as a number, possibly not finite.
std::optional<double> to_number(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || text.empty()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return HUGE_VAL;
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

/// Reads a table line by line.
class TableReader {
 public:
  TableReader(const std::filesystem::path& path, Label label)
      : path_(path), label_(label), text_(read_file(path)) {}

  TensorDataset read() {
    std::string_view rest = text_;
    if (rest.substr(0, 3) == "\xef\xbb\xbf") rest.remove_prefix(3);
    while (!rest.empty()) {
      const auto end = rest.find('\n');
      const auto line = rest.substr(0, end);
      rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
      ++line_;
      if (trimmed(line, kSpaces).empty()) continue;
      split(line);
      if (columns_ == 0)
        take_first_line();
      else
        take_line();
    }
    if (values_.empty()) throw IoError(path_, "holds no examples, expected lines of numbers and a label");
    const auto columns = static_cast<std::int64_t>(columns_);
    const auto table = torch::tensor(values_).view({-1, columns});
    return {table.slice(1, 0, columns - 1).contiguous(), table.slice(1, columns - 1).contiguous()};
  }

 private:
  /// Splits the line's values into fields_, without quotes.
  void split(std::string_view line) {
    fields_.clear();
    for (;;) {
      const auto begin = line.find_first_not_of(kSpaces);
      const bool quoted = begin != line.npos && line[begin] == '"';
      if (quoted) line = take_quoted(line.substr(begin + 1));
      const auto comma = line.find(',');
      if (!quoted)
        fields_.emplace_back(trimmed(line.substr(0, comma), kSpaces));
      else if (!trimmed(line.substr(0, comma), kSpaces).empty())
        fail(fields_.size() - 1, "expected a comma after the closing quote", line.substr(0, comma));
      if (comma == line.npos) return;
      line.remove_prefix(comma + 1);
    }
  }

  /// text  what follows the opening quote. returns  what follows the closing one
  std::string_view take_quoted(std::string_view text) {
    std::string value;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '"') {
        if (i + 1 == text.size() || text[i + 1] != '"') {
          fields_.push_back(std::move(value));
          return text.substr(i + 1);
        }
        ++i;  // two quotes stand for one
      }
      value += text[i];
    }
    fail(fields_.size(), "expected a closing quote on this line", text);
  }

  void take_first_line() {
    if (fields_.size() < 2)
      throw IoError(path_, where() + ": expected at least two values, separated by commas, got one: '" +
                               shown(fields_[0]) + "'");
    columns_ = fields_.size();
    if (fields_.back().empty() || to_number(fields_.back()))
      take_line();
    else
      names_ = fields_;
  }

  void take_line() {
    if (fields_.size() != columns_)
      throw IoError(path_, where() + ": expected " + std::to_string(columns_) +
                               " values, as on the earlier lines, got " + std::to_string(fields_.size()));
    for (std::size_t column = 0; column < columns_; ++column) values_.push_back(value_of(column));
  }

  float value_of(std::size_t column) const {
    const auto& text = fields_[column];
    const auto number = to_number(text);
    if (!number) fail(column, "expected a number", text);
    const auto value = static_cast<float>(*number);
    if (!std::isfinite(value)) fail(column, "expected a finite number in the range of float", text);
    if (label_ == Label::kZeroOrOne && column + 1 == columns_ && value != 0 && value != 1)
      fail(column, "expected a label that is 0 or 1", text);
    return value;
  }

  std::string where() const { return "line " + std::to_string(line_); }

  static std::string shown(std::string_view text) {
    return text.size() <= kShown ? std::string(text) : std::string(text.substr(0, kShown)) + "...";
  }

  [[noreturn]] void fail(std::size_t column, const std::string& expected, std::string_view got) const {
    const auto name = column < names_.size() ? " ('" + shown(names_[column]) + "')" : "";
    throw IoError(path_, where() + ", column " + std::to_string(column + 1) + name + ": " + expected +
                             ", got '" + shown(got) + "'");
  }

  const std::filesystem::path& path_;
  Label label_;
  std::string text_;
  std::int64_t line_ = 0;
  std::size_t columns_ = 0;  // known once the first line is read
  std::vector<std::string> names_, fields_;
  std::vector<float> values_;
};

}  // namespace

TensorDataset read_table(const std::filesystem::path& path, Label label) {
  return TableReader(path, label).read();
}

}  // namespace ddprun::data
