#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::serialize {

/// A pickle's opcodes and their operands, read from front to back; all throw UnpickleError past the end.
class PickleBytes {
 public:
  explicit PickleBytes(std::string_view bytes) : bytes_(bytes) {}

  char opcode();
  std::string_view take(std::size_t count);
  std::string_view line();                           ///< up to the newline, which is skipped
  std::uint64_t unsigned_number(std::size_t count);  ///< little endian, count <= 8 bytes
  std::int32_t int32();
  std::int64_t long_number();  ///< a byte with the length, then the number
  double real_number();        ///< big endian

  std::size_t position() const { return at_; }

  /// Throws UnpickleError with the position of the opcode read last.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
};

/// Such as "0x93", for an opcode in a message.
std::string hex(char byte);

}  // namespace ddprun::serialize
