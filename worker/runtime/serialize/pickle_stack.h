#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/ivalue.h>

#include <ddprun/serialize/pickle_bytes.h>
#include <ddprun/serialize/pickle_value.h>

namespace ddprun::serialize {

/// What a pickle's opcodes work on: a stack with marks, the containers on it, and a memo. All throw
/// UnpickleError for what does not fit, or goes too deep or too far.
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

  /// What is left at the end.
  c10::IValue result() const;

  /// The value or tensor; what: for the message when it is a function or a storage.
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

c10::IValue empty_list();
c10::IValue empty_dict();

}  // namespace ddprun::serialize
