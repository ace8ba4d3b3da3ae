#include <ddprun/data/dataset_files.h>

#include <fstream>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::data::Label;
using ddprun::data::read_table;
using ddprun::test::ContainsSubstring;

namespace {

struct Csv {
  explicit Csv(const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  TempDir dir;
  std::filesystem::path path = dir.path() / "table.csv";
};

/// The message for this file, without its path; empty if it is read.
std::string error_of(const std::string& text, Label label = Label::kNumber) {
  const Csv csv(text);
  try {
    read_table(csv.path, label);
  } catch (const IoError& error) {
    const std::string what = error.what(), begin = csv.path.string() + ": ";
    REQUIRE(what.rfind(begin, 0) == 0);
    return what.substr(begin.size());
  }
  return "";
}

}  // namespace

TEST_CASE("a table's last column is the label", "[table_dataset]") {
  const Csv csv("1,2.5,0\n-3e-2,+4,1\n.5,-0.25,1\n");
  const auto table = read_table(csv.path);
  REQUIRE(table.size() == 3);
  const auto batch = table.get_batch({1, 0, 2});
  CHECK(batch.input.equal(torch::tensor({{-3e-2f, 4.f}, {1.f, 2.5f}, {.5f, -.25f}})));
  CHECK(batch.target.equal(torch::tensor({{1.f}, {0.f}, {1.f}})));
}

TEST_CASE("a table may be written in each usual way", "[table_dataset]") {
  const std::string text =
      GENERATE(as<std::string>(),  //
               "1,2,0\n3,4,1\n",   //
               "1,2,0\n3,4,1",     //
               "1,2,0\r\n3,4,1\r\n",
               "\xef\xbb\xbf"
               "1,2,0\r\n3,4,1",
               "\n1,2,0\n\n  \n3,4,1\n\n",        //
               " 1 ,\t2, 0 \n3 , 4,1\n",          //
               "\"1\",\"2\",\"0\"\n\"3\",4,1\n",  //
               "x,y,label\n1,2,0\n3,4,1\n", "\xef\xbb\xbf\"x\",\"y\",\"label\"\r\n1,2,0\r\n3,4,1\r\n",
               "0,1,label\n1,2,0\n3,4,1\n",  // numbers for names
               "\"a, \"\"b\"\"\" , y,\"z\" \n1,2,0\n3,4,1\n");
  CAPTURE(text);
  const Csv csv(text);
  const auto table = read_table(csv.path, Label::kZeroOrOne);
  CHECK(table.input().equal(torch::tensor({{1.f, 2.f}, {3.f, 4.f}})));
  CHECK(table.target().equal(torch::tensor({{0.f}, {1.f}})));
}

TEST_CASE("numbers are read to the nearest float", "[table_dataset]") {
  const Csv csv("0.1,1e-50,16777217,3.4028234e38,1e-45,0\n");
  const auto table = read_table(csv.path);
  CHECK(table.input().equal(torch::tensor({{0.1f, 0.f, 16777216.f, 3.4028234e38f, 1e-45f}})));
}

TEST_CASE("a wrong table is refused with line, column, what was expected and got", "[table_dataset]") {
  CHECK(error_of("1,2,0\n3,x,1\n") == "line 2, column 2: expected a number, got 'x'");
  CHECK(error_of("age,size,ill\n1,2,0\n\n3,4 cm,1\n") ==
        "line 4, column 2 ('size'): expected a number, got '4 cm'");
  CHECK(error_of("1,2,0\n3,,1\n") == "line 2, column 2: expected a number, got ''");
  CHECK(error_of("1,,0\n") == "line 1, column 2: expected a number, got ''");
  CHECK(error_of("1,2,0\n3,4,\n") == "line 2, column 3: expected a number, got ''");
  CHECK(error_of("1,2,\n") == "line 1, column 3: expected a number, got ''");
  CHECK(error_of("1,2,0\n3,1\n") == "line 2: expected 3 values, as on the earlier lines, got 2");
  CHECK(error_of("1,2,0\r\n3,4,5,1\r\n") == "line 2: expected 3 values, as on the earlier lines, got 4");
  CHECK(error_of("1;2;0\n") == "line 1: expected at least two values, separated by commas, got one: '1;2;0'");
  CHECK(error_of("") == "holds no examples, expected lines of numbers and a label");
  CHECK(error_of("\n\r\n  \n") == "holds no examples, expected lines of numbers and a label");
  CHECK(error_of("x,y,label\n") == "holds no examples, expected lines of numbers and a label");
  CHECK(error_of("1,2,0\n3,\"4,1\n") == "line 2, column 2: expected a closing quote on this line, got '4,1'");
  CHECK(error_of("1,2,0\n3,\"4\" 5,1\n") ==
        "line 2, column 2: expected a comma after the closing quote, got ' 5'");
  CHECK(error_of("1,2,0\n0x10,2,0\n") == "line 2, column 1: expected a number, got '0x10'");
  CHECK(error_of("1,2,0\n1,+-2,0\n") == "line 2, column 2: expected a number, got '+-2'");
  CHECK(error_of("1,2,0\n1,2,0\n" + std::string(100, 'z') + ",2,0\n") ==
        "line 3, column 1: expected a number, got '" + std::string(40, 'z') + "...'");
}

TEST_CASE("a table's numbers must be finite floats", "[table_dataset]") {
  for (const std::string value : {"nan", "NaN", "inf", "-inf", "Infinity", "1e39", "-1e39", "1e400"})
    CHECK(error_of("1,2,0\n1," + value + ",1\n") ==
          "line 2, column 2: expected a finite number in the range of float, got '" + value + "'");
  CHECK(error_of("1,2,nan\n") ==
        "line 1, column 3: expected a finite number in the range of float, got 'nan'");
}

TEST_CASE("a label for two classes is 0 or 1", "[table_dataset]") {
  CHECK(error_of("1,2,0\n3,4,2\n", Label::kZeroOrOne) ==
        "line 2, column 3: expected a label that is 0 or 1, got '2'");
  CHECK(error_of("x,y,z\n1,2,0.5\n", Label::kZeroOrOne) ==
        "line 2, column 3 ('z'): expected a label that is 0 or 1, got '0.5'");
  CHECK(error_of("1,2,0.0\n3,4,1e0\n", Label::kZeroOrOne).empty());
}

TEST_CASE("a malformed table is one clear line", "[table_dataset]") {
  CHECK_THROWS_WITH(read_table("/no/such.csv"), ContainsSubstring("/no/such.csv: "));
  const TempDir dir;
  CHECK_THROWS_WITH(read_table(dir.path()), ContainsSubstring("is a folder, expected a file"));
  const auto text = error_of(std::string("1,2,0\n\x01\x02\0\n\xff,2,0\n", 16));
  CHECK(text.find('\n') == text.npos);
  CHECK_FALSE(text.empty());
}

TEST_CASE("a table cut at any byte is read or refused, never worse", "[table_dataset]") {
  const std::string whole = "\xef\xbb\xbf\"a\"\"b\",y,\"label\"\r\n1.5,\"-2e3\",0\r\n3,4,1\r\n";
  for (std::size_t size = 0; size < whole.size(); ++size)
    for (const char wrong : {'\0', '"', ',', '\n', '\xff', '9'}) {
      auto text = whole.substr(0, size);
      const auto cut = error_of(text);
      CHECK(cut.find('\n') == cut.npos);
      text = whole;
      text[size] = wrong;
      const auto changed = error_of(text);
      CHECK(changed.find('\n') == changed.npos);
    }
}
