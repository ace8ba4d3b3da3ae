#include <ddprun/serialize/pickle_stack.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

namespace ddprun::serialize {
namespace {

constexpr int kMaxDepth = 100;

/// Values may nest the same value many times, so a few bytes could stand for more elements than anyone can
/// walk through.
constexpr std::int64_t kMaxElements = 10'000'000;

}  // namespace

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
  std::uint64_t number = 0;  // little endian, like this host
  std::memcpy(&number, take(count).data(), count);
  return number;
}

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

// -- the stack --

Value& PickleStack::top() {
  if (stack_.size() <= bottom()) fail("takes a value from an empty stack");
  return stack_.back();
}

Value PickleStack::pop() {
  Value value = std::move(top());
  stack_.pop_back();
  return value;
}

Arguments PickleStack::pop_last(std::size_t count) {
  if (stack_.size() - bottom() < count) fail("takes a value from an empty stack");
  const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
  Arguments values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
  stack_.erase(first, stack_.end());
  return values;
}

Arguments PickleStack::pop_to_mark() {
  if (marks_.empty()) fail("takes values up to a mark that was not set");
  auto values = pop_last(stack_.size() - marks_.back());
  marks_.pop_back();
  return values;
}

Arguments PickleStack::pop_arguments() {
  const Value value = pop();
  if (const auto* arguments = std::get_if<std::shared_ptr<const Arguments>>(&value.what)) return **arguments;
  const auto& tuple = plain(value, "the arguments");
  if (!tuple.isTuple()) fail("calls a function with what is not a tuple");
  Arguments arguments;
  for (const auto& element : tuple.toTupleRef().elements()) arguments.push_back({element, value.nesting});
  return arguments;
}

c10::IValue PickleStack::result() const {
  if (!marks_.empty() || stack_.size() != 1) fail("the pickle ends in the middle of a value");
  return plain(stack_.back(), "the pickle's value");
}

const c10::IValue& PickleStack::plain(const Value& value, const char* what) const {
  const auto* found = std::get_if<c10::IValue>(&value.what);
  if (found == nullptr) fail(std::string(what) + " is a function or a storage, expected a value or a tensor");
  return *found;
}

void PickleStack::get(std::uint64_t slot) {
  const auto found = memo_.find(slot);
  if (found == memo_.end()) fail("refers to slot " + std::to_string(slot) + ", which is empty");
  stack_.push_back(found->second);
}

// -- containers --

Nesting& PickleStack::open_nesting(const Value& container) const {
  if (container.nesting == nullptr || container.nesting->closed)
    fail("changes a container that is inside another one already");
  return *container.nesting;
}

void PickleStack::nest(const Value& inner, Nesting& outer) const {
  ++outer.elements;
  if (inner.nesting != nullptr) {
    if (inner.nesting.get() == &outer) fail("puts a container into itself");
    inner.nesting->closed = true;
    outer.depth = std::max(outer.depth, inner.nesting->depth + 1);
    outer.elements += inner.nesting->elements;
  }
  if (outer.depth > kMaxDepth)
    fail("nested deeper than the " + std::to_string(kMaxDepth) + " levels allowed");
  if (outer.elements > kMaxElements)
    fail("holds more than the " + std::to_string(kMaxElements) + " elements allowed");
}

void PickleStack::append(const Arguments& values) {
  const Value& target = top();
  const auto& list = plain(target, "the target of APPEND");
  if (!list.isList()) fail("appends to what is not a list");
  Nesting& nesting = open_nesting(target);
  auto items = list.toList();
  for (const auto& value : values) {
    nest(value, nesting);
    items.push_back(plain(value, "a list's element"));
  }
}

void PickleStack::set_items(const Arguments& values) {
  const Value& target = top();
  const auto& mapping = plain(target, "the target of SETITEM");
  if (!mapping.isGenericDict() || values.size() % 2 != 0) fail("sets items of what is not a dict");
  Nesting& nesting = open_nesting(target);
  auto dict = mapping.toGenericDict();
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const auto& key = plain(values[i], "a dict's key");
    if (!key.isString() && !key.isInt() && !key.isDouble() && !key.isBool())
      fail("a dict's key is a " + key.tagKind() + ", expected a string or a number");
    if (dict.empty() && key.isInt()) dict.unsafeSetKeyType(c10::IntType::get());
    nest(values[i + 1], nesting);
    dict.insert_or_assign(key, plain(values[i + 1], "a dict's value"));
  }
}

void PickleStack::push_tuple(Arguments values) {
  auto nesting = std::make_shared<Nesting>();
  nesting->closed = true;
  std::vector<c10::IValue> elements;
  for (const auto& value : values) {
    if (std::holds_alternative<std::shared_ptr<const Arguments>>(value.what))
      fail("a tuple of functions in a tuple");
    nest(value, *nesting);
    if (const auto* element = std::get_if<c10::IValue>(&value.what)) elements.push_back(*element);
  }
  if (elements.size() == values.size())
    stack_.push_back({c10::IValue(c10::ivalue::Tuple::create(std::move(elements))), nesting});
  else
    stack_.push_back({std::make_shared<const Arguments>(std::move(values)), nesting});
}

}  // namespace ddprun::serialize
