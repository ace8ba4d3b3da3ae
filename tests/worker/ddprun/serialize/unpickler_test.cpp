#include <ddprun/serialize/unpickler.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "tests/support/catch.h"

using ddprun::serialize::StorageReference;
using ddprun::serialize::unpickle;
using ddprun::serialize::UnpickleError;
using ddprun::test::ContainsSubstring;
using namespace std::string_literals;

namespace {

c10::Storage eight_floats(const StorageReference& wanted) {
  if (wanted.numel != 8 || wanted.dtype != at::kFloat) throw UnpickleError("not the storage of this test");
  return at::arange(8, at::kFloat).storage();
}

c10::IValue unpickled(const std::string& pickle) { return unpickle("\x80\x02" + pickle + ".", eight_floats); }

const auto kStorage =
    "(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
    "0X\x03\0\0\0cpuK\x08tQ"s;

/// A tensor of that storage: offset, sizes and strides as pickled tuples.
std::string tensor(const std::string& offset, const std::string& sizes, const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + kStorage + offset + sizes + strides +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

}  // namespace

TEST_CASE("unpickle reads numbers of every width", "[unpickler]") {
  CHECK(unpickled("K\xff"s).toInt() == 255);
  CHECK(unpickled("M\xff\xff"s).toInt() == 65535);
  CHECK(unpickled("J\xff\xff\xff\xff"s).toInt() == -1);
  CHECK(unpickled("\x8a\0"s).toInt() == 0);
  CHECK(unpickled("\x8a\x01\xff"s).toInt() == -1);
  CHECK(unpickled("\x8a\x06\0\xf2\x05*\x01\0"s).toInt() == 5'000'000'000);
  CHECK(unpickled("\x8a\x08\0\0\0\0\0\0\0\x80"s).toInt() == INT64_MIN);
  CHECK(unpickled("G?\xe0\0\0\0\0\0\0"s).toDouble() == 0.5);
  CHECK_THROWS_WITH(unpickled("\x8a\x09\0\0\0\0\0\0\0\x80\0"s), ContainsSubstring("more than 64 bits"));
}

TEST_CASE("unpickle builds a tensor that views its storage", "[unpickler]") {
  const auto found = unpickled(tensor("K\x01", "K\x02K\x03\x86", "K\x03K\x01\x86")).toTensor();
  CHECK(found.sizes() == at::IntArrayRef({2, 3}));
  CHECK(found.equal(at::arange(1, 7, at::kFloat).view({2, 3})));
}

TEST_CASE("unpickle refuses a tensor beyond its storage", "[unpickler]") {
  const auto huge = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s;
  for (const auto& pickle :
       {tensor("K\x01", "K\x08\x85", "K\x01\x85"), tensor("K\x09", "K\0\x85"s, "K\x01\x85"),
        tensor(huge, "K\x01\x85", "K\x01\x85"), tensor("K\0"s, huge + "\x85", "K\x01\x85"),
        tensor("K\0"s, huge + huge + "\x86", "K\0K\0\x86"s), tensor("K\0"s, "K\x02\x85", huge + "\x85")})
    CHECK_THROWS_WITH(unpickled(pickle), ContainsSubstring("beyond its storage"));
  for (const auto& pickle :
       {tensor("N", "K\x01\x85", "K\x01\x85"), tensor("K\0"s, "K\x01\x85", ")"),
        tensor("K\0"s, "J\xff\xff\xff\xff\x85", "K\x01\x85"), tensor("K\0"s, "N", "N"),
        tensor("K\0"s, "(" + repeated("K\x01", 65) + "t", "(" + repeated("K\x01", 65) + "t")})
    CHECK_THROWS_WITH(unpickled(pickle), ContainsSubstring("offset, size and stride"));
}

TEST_CASE("unpickle names what is not on its list", "[unpickler]") {
  CHECK_THROWS_WITH(unpickled("cposix\nsystem\nX\x02\0\0\0ls\x85R"s), ContainsSubstring("\"posix.system\""));
  CHECK_THROWS_WITH(unpickled("c__builtin__\neval\n"), ContainsSubstring("byte 2 of the pickle"));
  CHECK_THROWS_WITH(unpickled("c\x1b[31m\nx\n"), ContainsSubstring("\\u001b[31m.x"));
  CHECK_THROWS_WITH(unpickled("\x93"), ContainsSubstring("opcode 0x93"));
  CHECK_THROWS_WITH(unpickled("i"), ContainsSubstring("opcode 0x69"));
}

TEST_CASE("unpickle refuses malformed pickles with one line", "[unpickler]") {
  const auto pickle = GENERATE(
      ""s, "NN"s, "("s, "(N"s, "t"s, "e"s, "u"s, "a"s, "]a"s, "N]a"s, "NNNs"s, "}(Nu"s, "}NNs"s, "}]Ns"s,
      "R"s, ")R"s, "N)R"s, "NNR"s, "Q"s, "NQ"s, ")Q"s, "q\0"s, "h\0"s, "j\0\0\0\0"s, "b"s, "Nb"s, "]Nb"s,
      "X\xff\xff\xff\xffx"s, "G\0"s, "c"s, "cx"s, "cx\ny"s, "]q\0h\0a"s, "]q\0]h\0aa"s,
      "]q\0]q\1h\0ah\0h\1a"s, "ccollections\nOrderedDict\n"s, "ccollections\nOrderedDict\n\x85"s,
      "ccollections\nOrderedDict\n\x85\x85"s, "ccollections\nOrderedDict\nN\x85R"s, "c__builtin__\nset\n)R"s,
      "ctorch\nSize\nN\x85R"s, "ctorch\ndevice\n)R"s, "ctorch\ndevice\nN\x85R"s,
      "ctorch\ndevice\nX\0\0\0\0\x85R"s, "ccollections\nCounter\nN\x85R"s,
      "ctorch._utils\n_rebuild_tensor_v2\n)R"s, "ctorch._utils\n_rebuild_parameter\n)R"s,
      "ctorch\nFloatStorage\n)R"s, "](ctorch\nFloatStorage\ne"s);
  CAPTURE(pickle);
  try {
    unpickled(pickle);
    FAIL("nothing was thrown");
  } catch (const UnpickleError& error) {
    CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

TEST_CASE("unpickle reads the text of Python 2", "[unpickler]") {
  CHECK(unpickled("U\x02"
                  "ab"s)
            .toStringRef() == "ab");
  CHECK(unpickled("T\x02\0\0\0"
                  "ab"s)
            .toStringRef() == "ab");
  CHECK_THROWS_WITH(unpickled("T\xff\xff\xff\xff"
                              "ab"s),
                    ContainsSubstring("in the middle"));
}

TEST_CASE("unpickle refuses few bytes that stand for more than anyone could walk through", "[unpickler]") {
  // Each list holds the one before ten times.
  std::string laughs = "](NNNNNNNNNNeq\0"s;
  for (int level = 0; level < 20; ++level) laughs += "](" + repeated("h\0"s, 10) + "eq\0"s;
  CHECK_THROWS_WITH(unpickled(laughs), ContainsSubstring("more than the 10000000 elements"));
  CHECK_THROWS_WITH(unpickled("N" + repeated("q\0"s, 2'000'000)),
                    ContainsSubstring("more than the 2000000 opcodes"));
}

TEST_CASE("unpickle refuses a newer tensor without a proper type", "[unpickler]") {
  const auto of_type = [](const std::string& dtype) {
    return "ctorch._utils\n_rebuild_tensor_v3\n(" + kStorage + "K\0K\x01\x85K\x01\x85\x89"s +
           "ccollections\nOrderedDict\n)R"s + dtype + "tR";
  };
  for (const auto& dtype : {"ctorch\nuint16\n"s, "N"s, "ctorch\nSize\n"s})  // a storage of floats
    CHECK_THROWS_AS(unpickled(of_type(dtype)), UnpickleError);
}

TEST_CASE("unpickle limits the depth of containers", "[unpickler]") {
  for (const auto& [open, close] : {std::pair{"]"s, "a"s}, std::pair{"}K\1"s, "s"s}, std::pair{"("s, "t"s}}) {
    CHECK_NOTHROW(unpickled(repeated(open, 99) + "N" + repeated(close, 99)));
    CHECK_THROWS_WITH(unpickled(repeated(open, 100'000) + "N" + repeated(close, 100'000)),
                      ContainsSubstring("nested deeper"));
  }
}

TEST_CASE("unpickle survives every change of one byte and every truncation", "[unpickler]") {
  const std::string whole = "\x80\x02}q\0(X\x01\0\0\0wq\1"s +
                            tensor("K\0"s, "K\x02K\x02\x86", "K\x02K\x01\x86") +
                            "X\1\0\0\0v(K\1K\2tX\1\0\0\0l](NG?\xe0\0\0\0\0\0\0\x8a\1\1eX\1\0\0\0mh\1u."s;
  REQUIRE(unpickle(whole, eight_floats).toGenericDict().size() == 4);
  const auto survives = [](const std::string& pickle) {
    try {
      unpickle(pickle, eight_floats);
      return true;
    } catch (const UnpickleError&) {
      return true;
    }
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK_THROWS_AS(unpickle(whole.substr(0, i), eight_floats), UnpickleError);
    for (int byte = 0; byte < 256; ++byte) {
      auto changed = whole;
      changed[i] = static_cast<char>(byte);
      REQUIRE(survives(changed));
    }
  }
}
