#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include <ddprun/serialize/unpickler.h>

namespace ddprun::serialize {

/// Reads a pickle's opcodes and operands front to back; all functions throw UnpickleError past the end.
class PickleBytes {
 public:
  explicit PickleBytes(std::string_view bytes) : bytes_(bytes) {}

  char opcode();
  std::string_view take(std::size_t count);
  std::string_view line();                           ///< up to the newline, which it skips
  std::uint64_t unsigned_number(std::size_t count);  ///< little endian, count <= 8 bytes
  std::int64_t long_number();                        ///< a length byte, then the number
  double real_number();                              ///< big endian

  std::size_t position() const { return at_; }

  /// Throws UnpickleError with the position of the last opcode.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
};

/// A Python name that the pickle may use, such as "torch._utils._rebuild_tensor_v2".
struct Global {
  std::string name;
};

/// Depth and size of a container's content, and whether it is inside another one. Such a container is closed
/// and must not change any more: this prevents cycles and keeps depth and size correct.
struct Nesting {
  int depth = 1;
  std::int64_t elements = 1;  // counted as often as a walk through the value visits them
  bool closed = false;
};

struct Value;
using Arguments = std::vector<Value>;  // a tuple that holds what an IValue cannot

struct Value {
  std::variant<c10::IValue, Global, StorageReference, std::shared_ptr<const Arguments>> what;
  std::shared_ptr<Nesting> nesting = nullptr;  // of a list, a dict or a tuple
};

/// What a pickle's opcodes work on: a stack with marks, the containers on it, and a memo. All functions throw
/// UnpickleError for malformed input and for values that are too deep or too large.
class PickleStack {
 public:
  /// bytes  where the opcodes come from, for messages
  explicit PickleStack(const PickleBytes& bytes) : bytes_(bytes) {}

  void push(c10::IValue value) { stack_.push_back({std::move(value)}); }
  void push(Value value) { stack_.push_back(std::move(value)); }
  void push_container(c10::IValue value) {
    stack_.push_back({std::move(value), std::make_shared<Nesting>()});
  }
  Value& top();
  Value pop();
  Arguments pop_last(std::size_t count);
  Arguments pop_to_mark();
  Arguments pop_arguments();  ///< a tuple's elements
  void mark() { marks_.push_back(stack_.size()); }

  /// The value left at the end.
  c10::IValue result() const;

  /// The value or tensor. what: its name in the message if it is a function or a storage
  const c10::IValue& plain(const Value& value, const char* what) const;

  void append(const Arguments& values);     ///< to the list on top
  void set_items(const Arguments& values);  ///< of the dict on top: key, value, key, value, ...
  void push_tuple(Arguments values);

  void put(std::uint64_t slot) { memo_.insert_or_assign(slot, top()); }
  void get(std::uint64_t slot);

 private:
  [[noreturn]] void fail(const std::string& message) const { bytes_.fail(message); }
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  Nesting& open_nesting(const Value& container) const;
  void nest(const Value& inner, Nesting& outer) const;

  const PickleBytes& bytes_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value> memo_;
};

}  // namespace ddprun::serialize
