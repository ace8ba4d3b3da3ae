#include <ddprun/serialize/unpickler.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <ddprun/common/text.h>
#include <ddprun/serialize/element_types.h>
#include <ddprun/serialize/pickle_stack.h>

namespace ddprun::serialize {
namespace {

/// Each opcode may take two hundred bytes of memory. A tensor needs some thirty opcodes.
constexpr std::int64_t kMaxOpcodes = 2'000'000;

constexpr std::size_t kMaxDimensions = 64;

/// "0x93"
std::string hex(char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  return std::string("0x") + kDigits[value >> 4] + kDigits[value & 15];
}

c10::IValue empty_list() { return c10::impl::GenericList(c10::AnyType::get()); }
c10::IValue empty_dict() { return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get()); }

/// The numbers of a tuple; nullopt unless all are integers >= 0.
std::optional<std::vector<std::int64_t>> integers(const c10::IValue& tuple) {
  if (!tuple.isTuple()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const auto& element : tuple.toTupleRef().elements()) {
    if (!element.isInt() || element.toInt() < 0) return std::nullopt;
    numbers.push_back(element.toInt());
  }
  return numbers;
}

constexpr std::string_view kFunctions[] = {"collections.OrderedDict",
                                           "collections.Counter",
                                           "torch.Size",
                                           "torch.device",
                                           "torch._utils._rebuild_tensor",
                                           "torch._utils._rebuild_tensor_v2",
                                           "torch._utils._rebuild_tensor_v3",
                                           "torch._utils._rebuild_parameter",
                                           "__builtin__.set"};

class Unpickler {
 public:
  Unpickler(std::string_view pickle, const OpenStorage& open_storage)
      : bytes_(pickle), stack_(bytes_), open_storage_(open_storage) {}

  c10::IValue run() {
    for (std::int64_t opcodes = 1; step(); ++opcodes)
      if (opcodes == kMaxOpcodes) fail("more than the " + std::to_string(kMaxOpcodes) + " opcodes allowed");
    return stack_.result();
  }
  std::size_t end() { return bytes_.position(); }

 private:
  [[noreturn]] void fail(const std::string& message) const { bytes_.fail(message); }
  const c10::IValue& plain(const Value& value, const char* what) const { return stack_.plain(value, what); }

  std::int64_t integer(std::size_t count) { return static_cast<std::int64_t>(bytes_.unsigned_number(count)); }
  std::string text(std::size_t count) { return std::string(bytes_.take(bytes_.unsigned_number(count))); }

  /// Drops attributes such as _metadata.
  void build() {
    stack_.pop();
    if (!plain(stack_.top(), "the target of BUILD").isGenericDict())
      fail("sets attributes of what is not a dict");
  }

  void push_global() {
    std::string name(bytes_.line());
    name.append(".").append(bytes_.line());
    const bool is_function = std::ranges::find(kFunctions, name) != std::end(kFunctions);
    if (is_function || dtype_named(name, &DtypeNames::storage))
      return stack_.push(Value{Global{std::move(name)}});
    if (dtype_named(name, &DtypeNames::dtype)) return stack_.push(std::move(name));
    fail("uses " + in_quotes(name) + ", which is not on the list of what a checkpoint may use");
  }

  // ('storage', torch.FloatStorage, key, location, numel) and in old files a view, which is None.
  void push_storage() {
    const auto arguments = stack_.pop_arguments();
    if (arguments.size() != 5 && arguments.size() != 6)
      fail("a storage of " + std::to_string(arguments.size()) + " fields");
    const auto& kind = plain(arguments[0], "a storage's kind");
    const auto* type = std::get_if<Global>(&arguments[1].what);
    const auto& key = plain(arguments[2], "a storage's key");
    const auto& numel = plain(arguments[4], "a storage's size");
    if (!kind.isString() || kind.toStringRef() != "storage" || type == nullptr || !key.isString() ||
        !numel.isInt() || (arguments.size() == 6 && !plain(arguments[5], "a storage's view").isNone()))
      fail("a storage that is not ('storage', type, key, location, size)");
    const auto dtype = dtype_named(type->name, &DtypeNames::storage);
    if (!dtype) fail("a storage of type " + in_quotes(type->name));
    if (numel.toInt() < 0) fail("a storage of " + std::to_string(numel.toInt()) + " elements");
    stack_.push(Value{StorageReference{*dtype, key.toStringRef(), numel.toInt()}});
  }

  /// viewed  the storage as elements of the tensor's type
  at::Tensor rebuild_tensor(const StorageReference& storage, const StorageReference& viewed,
                            const c10::IValue& offset, const c10::IValue& size, const c10::IValue& stride) {
    const auto sizes = integers(size);
    const auto strides = integers(stride);
    if (!offset.isInt() || offset.toInt() < 0 || !sizes || !strides || sizes->size() != strides->size() ||
        sizes->size() > kMaxDimensions)
      fail(
          "a tensor whose offset, size and stride are not a number and two tuples of as many numbers, all >= "
          "0");
    // Neither may overflow int64, nor may the product without zeros: TensorImpl multiplies in that order.
    auto bytes = static_cast<std::int64_t>(c10::elementSize(viewed.dtype));
    std::int64_t last = offset.toInt();
    bool overflow = false, empty = false;
    for (std::size_t i = 0; i < sizes->size(); ++i) {
      const auto extent = (*sizes)[i];
      std::int64_t reach = 0;
      empty |= extent == 0;
      if (extent == 0) continue;
      overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
      overflow |= __builtin_mul_overflow(extent - 1, (*strides)[i], &reach);
      overflow |= __builtin_add_overflow(last, reach, &last);
    }
    if (overflow || (empty ? offset.toInt() > viewed.numel : last >= viewed.numel))
      fail("a tensor reaches beyond its storage " + in_quotes(viewed.key) + " of " +
           std::to_string(viewed.numel) + " elements");
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(open_storage_(storage),
                                                           c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                           c10::scalarTypeToTypeMeta(viewed.dtype));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(*sizes, *strides, offset.toInt());
    return tensor;
  }

  // (storage, offset, size, stride), for _v2 also (requires_grad, hooks), for _v3 (requires_grad, hooks,
  // dtype); then perhaps metadata.
  void push_tensor(const std::string& function, const Arguments& arguments) {
    const std::size_t needed = function.ends_with("_v3") ? 7 : function.ends_with("_v2") ? 6 : 4;
    const auto* storage = arguments.empty() ? nullptr : std::get_if<StorageReference>(&arguments[0].what);
    const bool fits = arguments.size() == needed || (needed > 4 && arguments.size() == needed + 1);
    if (!fits || storage == nullptr) fail("calls " + function + " with other arguments than it has");
    auto viewed = *storage;
    if (needed == 7) {
      const auto& name = plain(arguments[6], "a tensor's dtype");
      const auto dtype = name.isString() ? dtype_named(name.toStringRef(), &DtypeNames::dtype) : std::nullopt;
      if (!dtype || *dtype == c10::ScalarType::Bool || storage->dtype != c10::ScalarType::Byte)
        fail("a tensor without a proper dtype");
      viewed.dtype = *dtype;
      viewed.numel /= static_cast<std::int64_t>(c10::elementSize(*dtype));
    }
    if (arguments.size() > needed) {
      const auto& metadata = plain(arguments[needed], "a tensor's metadata");
      if (!metadata.isNone() && !(metadata.isGenericDict() && metadata.toGenericDict().empty()))
        fail("a tensor with metadata (conjugate or negative bit), which is not supported");
    }
    stack_.push(rebuild_tensor(*storage, viewed, plain(arguments[1], "a tensor's offset"),
                               plain(arguments[2], "a tensor's size"),
                               plain(arguments[3], "a tensor's stride")));
  }

  // ('cpu',) or ('cuda', 0): its name.
  void push_device(const Arguments& arguments) {
    std::string name;
    if (!arguments.empty() && plain(arguments[0], "a device").isString())
      name = plain(arguments[0], "a device").toStringRef();
    if (arguments.size() == 2 && plain(arguments[1], "a device").isInt())
      name += ":" + std::to_string(plain(arguments[1], "a device").toInt());
    else if (arguments.size() != 1)
      name.clear();
    if (name.empty()) fail("calls torch.device with other arguments than it has");
    stack_.push(std::move(name));
  }

  void reduce() {
    const auto arguments = stack_.pop_arguments();
    const Value callee = stack_.pop();
    const auto* function = std::get_if<Global>(&callee.what);
    if (function == nullptr) fail("calls what is not a function");
    const auto& name = function->name;
    if (name.starts_with("torch._utils._rebuild_tensor")) return push_tensor(name, arguments);
    if (name == "torch.device") return push_device(arguments);
    const bool dict = name == "collections.OrderedDict" || name == "collections.Counter";
    if (dict && arguments.empty()) return stack_.push_container(empty_dict());
    const auto first_is = [&](const char* callee_name, bool (c10::IValue::*kind)() const) {
      return name == callee_name && arguments.size() == 1 && (plain(arguments[0], "an argument").*kind)();
    };
    const bool parameter = name == "torch._utils._rebuild_parameter" && arguments.size() == 3 &&
                           plain(arguments[0], "a parameter's data").isTensor();
    if (parameter || first_is("collections.Counter", &c10::IValue::isGenericDict) ||
        first_is("__builtin__.set", &c10::IValue::isList) || first_is("torch.Size", &c10::IValue::isTuple))
      return stack_.push(arguments[0]);
    fail("calls " + name + " with other arguments than it has");
  }

  // clang-format off

  /// Numbers, strings, constants and empty containers. returns  false for other opcodes
  bool step_scalar(char opcode) {
    switch (opcode) {
      case 'N':    stack_.push(c10::IValue()); break;                    // NONE
      case '\x88': stack_.push(true); break;                             // NEWTRUE
      case '\x89': stack_.push(false); break;                            // NEWFALSE
      case 'J':    stack_.push(std::int64_t{static_cast<std::int32_t>(integer(4))}); break;  // BININT
      case 'K':    stack_.push(integer(1)); break;                       // BININT1
      case 'M':    stack_.push(integer(2)); break;                       // BININT2
      case '\x8a': stack_.push(bytes_.long_number()); break;             // LONG1
      case 'G':    stack_.push(bytes_.real_number()); break;             // BINFLOAT
      case 'X':    stack_.push(text(4)); break;                          // BINUNICODE
      case 'T':    stack_.push(text(4)); break;                          // BINSTRING, of Python 2
      case 'U':    stack_.push(text(1)); break;                          // SHORT_BINSTRING, of Python 2
      case ')':    stack_.push_tuple({}); break;                         // EMPTY_TUPLE
      case ']':    stack_.push_container(empty_list()); break;           // EMPTY_LIST
      case '}':    stack_.push_container(empty_dict()); break;           // EMPTY_DICT
      default: return false;
    }
    return true;
  }

  /// One opcode. returns  false at STOP
  bool step() {
    const char opcode = bytes_.opcode();
    if (step_scalar(opcode)) return true;
    switch (opcode) {
      case '\x80': bytes_.take(1); break;                                // PROTO
      case '.':    return false;                                         // STOP
      case '(':    stack_.mark(); break;                                 // MARK
      case 'c':    push_global(); break;                                 // GLOBAL
      case 'Q':    push_storage(); break;                                // BINPERSID
      case 'R':    reduce(); break;                                      // REDUCE
      case 'b':    build(); break;                                       // BUILD
      case 'q':    stack_.put(bytes_.unsigned_number(1)); break;         // BINPUT
      case 'r':    stack_.put(bytes_.unsigned_number(4)); break;         // LONG_BINPUT
      case 'h':    stack_.get(bytes_.unsigned_number(1)); break;         // BINGET
      case 'j':    stack_.get(bytes_.unsigned_number(4)); break;         // LONG_BINGET
      case 't':    stack_.push_tuple(stack_.pop_to_mark()); break;       // TUPLE
      case '\x85': stack_.push_tuple(stack_.pop_last(1)); break;         // TUPLE1
      case '\x86': stack_.push_tuple(stack_.pop_last(2)); break;         // TUPLE2
      case '\x87': stack_.push_tuple(stack_.pop_last(3)); break;         // TUPLE3
      case 'a':    stack_.append(stack_.pop_last(1)); break;             // APPEND
      case 'e':    stack_.append(stack_.pop_to_mark()); break;           // APPENDS
      case 's':    stack_.set_items(stack_.pop_last(2)); break;          // SETITEM
      case 'u':    stack_.set_items(stack_.pop_to_mark()); break;        // SETITEMS
      default:     fail("opcode " + hex(opcode) + " is not one that torch.save writes");
    }
    return true;
  }

  // clang-format on

  PickleBytes bytes_;
  PickleStack stack_;
  const OpenStorage& open_storage_;
};

}  // namespace

c10::IValue unpickle(std::string_view bytes, const OpenStorage& open_storage) {
  return Unpickler(bytes, open_storage).run();
}

c10::IValue unpickle_first(std::string_view& bytes, const OpenStorage& open_storage) {
  Unpickler unpickler(bytes, open_storage);
  auto value = unpickler.run();
  bytes.remove_prefix(unpickler.end());
  return value;
}

}  // namespace ddprun::serialize
