#include <ddprun/serialize/pickle_bytes.h>

#include <bit>

#include <ddprun/serialize/unpickler.h>

namespace ddprun::serialize {

char PickleBytes::opcode() {
  opcode_at_ = at_;
  return take(1)[0];
}

std::string_view PickleBytes::take(std::size_t count) {
  if (count > bytes_.size() - at_) fail("the pickle ends in the middle of an opcode");
  const auto taken = bytes_.substr(at_, count);
  at_ += count;
  return taken;
}

std::string_view PickleBytes::line() {
  const auto end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) fail("the pickle ends in the middle of a name");
  const auto text = bytes_.substr(at_, end - at_);
  at_ = end + 1;
  return text;
}

std::uint64_t PickleBytes::unsigned_number(std::size_t count) {
  const auto digits = take(count);
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < count; ++i)
    number |= std::uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
  return number;
}

std::int32_t PickleBytes::int32() { return static_cast<std::int32_t>(unsigned_number(4)); }

std::int64_t PickleBytes::long_number() {
  const auto count = unsigned_number(1);
  if (count > 8) fail("an integer of more than 64 bits");
  if (count == 0) return 0;
  const auto shift = 64 - 8 * count;
  return static_cast<std::int64_t>(unsigned_number(count) << shift) >> shift;
}

double PickleBytes::real_number() {
  std::uint64_t bits = 0;
  for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
  return std::bit_cast<double>(bits);
}

void PickleBytes::fail(const std::string& message) const {
  throw UnpickleError("byte " + std::to_string(opcode_at_) + " of the pickle: " + message);
}

std::string hex(char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  return std::string("0x") + kDigits[value >> 4] + kDigits[value & 15];
}

}  // namespace ddprun::serialize
