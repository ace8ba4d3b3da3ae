#include "worker/sam/data/prompt_points.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::sam::read_points;
using ddprun::test::ContainsSubstring;

namespace {

const std::filesystem::path kPointsGolden = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "npy";

struct PointsFile {
  explicit PointsFile(const std::string& text) { write_file_atomic(path, text); }
  TempDir dir;
  std::filesystem::path path = dir.path() / "points.csv";
};

/// The message for this file, without its path; empty if it is read.
std::string error_of(const std::string& text, std::int64_t images = 3) {
  const PointsFile file(text);
  try {
    read_points(file.path, images);
  } catch (const IoError& error) {
    const std::string what = error.what(), begin = file.path.string() + ": ";
    REQUIRE(what.rfind(begin, 0) == 0);
    return what.substr(begin.size());
  }
  return "";
}

nlohmann::json decoded(const std::filesystem::path& path) {
  const auto table = sam::decode_npy(read_file(path), path);
  auto rows = nlohmann::json::array();
  for (std::int64_t row = 0; row < table.size(0); ++row) {
    const auto* begin = table.const_data_ptr<double>() + row * table.size(1);
    rows.push_back(std::vector<double>(begin, begin + table.size(1)));
  }
  return rows;
}

}  // namespace

TEST_CASE("points of a CSV file go to the images that they name, in the file's order", "[prompt_points]") {
  const auto text = GENERATE(
      as<std::string>(),  //
      "index,y,x\n2,10,20.5\n0,3,4\n2,0,7\n", "\xef\xbb\xbfindex, y, x\r\n2, 10, 20.5\r\n\r\n0,3,4\r\n2,0,7",
      "x,index,y\n20.5,2,10\n4,0,3\n7,2,0\n", "index,y,x,label\n2,10,20.5,1\n0,3,4,1\n2,0,7,1\n");
  CAPTURE(text);
  const PointsFile file(text);
  const auto points = read_points(file.path, 3);
  REQUIRE(points.size() == 3);
  REQUIRE(points[0].size() == 1);
  CHECK((points[0][0].x == 4 && points[0][0].y == 3 && points[0][0].foreground));
  CHECK(points[1].empty());
  REQUIRE(points[2].size() == 2);
  CHECK((points[2][0].x == 20.5 && points[2][0].y == 10));
  CHECK((points[2][1].x == 7 && points[2][1].y == 0));
  CHECK(points[2][1].origin.starts_with("line "));
}

TEST_CASE("a label of 0 is the background's", "[prompt_points]") {
  const PointsFile file("label,index,y,x\n0,0,1,2\n1,0,3,4\n");
  const auto points = read_points(file.path, 1);
  CHECK(!points[0][0].foreground);
  CHECK(points[0][1].foreground);
}

TEST_CASE("what is wrong in a file of points is named with its line", "[prompt_points]") {
  const std::string header = "index,y,x\n";
  CHECK(error_of(header + "0,1,2\n1,2,x7\n") == "line 3: expected a number as x, got 'x7'");
  CHECK(error_of(header + "0,,2\n") == "line 2: expected a number as y, got ''");
  CHECK(error_of(header + "0,nan,2\n") == "line 2: expected a number as y, got 'nan'");
  CHECK(error_of(header + "\n0,1\n") == "line 3: expected 3 values, as many as the header has names, got 2");
  CHECK(error_of(header + "3,1,2\n") == "line 2: expected an index from 0 to 2, one of 3 images, got 3");
  CHECK(error_of(header + "-1,1,2\n") == "line 2: expected an index from 0 to 2, one of 3 images, got -1");
  CHECK_THAT(error_of(header + "0.5,1,2\n"), ContainsSubstring("expected an index from 0 to 2"));
  CHECK(error_of(header + "0,-1,2\n") == "line 2: expected y and x of a pixel, 0 or more, got -1, 2");
  CHECK(error_of("index,y,x,label\n0,1,2,3\n") ==
        "line 2: expected a label that is 1 (foreground) or 0 (background), got 3");
  CHECK(error_of(header) == "holds no points");
}

TEST_CASE("a file of points needs its header", "[prompt_points]") {
  const std::string expected = "line 1: expected the header index,y,x or index,y,x,label, got ";
  CHECK(error_of("0,1,2\n1,2,3\n") == expected + "'0,1,2'");
  CHECK(error_of("") == expected + "''");
  CHECK(error_of("index,y\n0,1\n") == expected + "'index,y'");
  CHECK(error_of("index,y,x,y\n") == expected + "'index,y,x,y'");
  CHECK(error_of("index,y,x,class\n") == expected + "'index,y,x,class'");
  CHECK_THAT(error_of("\x89PNG" + std::string(500, 'x')), ContainsSubstring(expected));
  CHECK_THROWS_AS(read_points("/no/such/file.csv", 1), IoError);
}

TEST_CASE("points are read from NumPy files too", "[prompt_points]") {
  const auto points = read_points(kPointsGolden / "labelled.npy", 3);
  REQUIRE(points[1].size() == 2);
  CHECK((points[1][0].y == 20 && points[1][0].x == 30 && points[1][0].foreground));
  CHECK((points[0][0].y == 5 && points[0][0].x == 127 && !points[0][0].foreground));
  CHECK(points[2][0].origin == "row 3");
  CHECK(read_points(kPointsGolden / "i1.npy", 3)[2].size() == 1);
  CHECK_THROWS_WITH(
      read_points(kPointsGolden / "labelled.npy", 2),
      ContainsSubstring("labelled.npy: row 3: expected an index from 0 to 1, one of 2 images, got 2"));
}

TEST_CASE("NumPy files of each dtype, order and version hold what NumPy wrote", "[npy]") {
  const auto expected = nlohmann::json::parse(read_file(kPointsGolden / "expected.json"));
  CHECK(expected.size() == 18);
  for (const auto& [name, rows] : expected.items()) {
    INFO(name);
    CHECK(decoded(kPointsGolden / (name + ".npy")) == rows);
  }
}

TEST_CASE("a NumPy file of another kind is refused", "[npy]") {
  for (const std::string name : {"half", "flat", "cube", "text", "record", "complex"}) {
    const auto path = kPointsGolden / ("refused_" + name + ".npy");
    CHECK_THROWS_WITH(
        decoded(path),
        ContainsSubstring(path.string() +
                          ": expected an array of two dimensions of integers or floats, got {"));
  }
  const TempDir dir;
  const auto path = dir.path() / "wide.npy";
  auto bytes = read_file(kPointsGolden / "i8.npy");
  bytes.replace(bytes.find("(4, 3)"), 6, "(6, 2)");
  write_file_atomic(path, bytes);
  CHECK_THROWS_WITH(read_points(path, 3),
                    path.string() + ": expected 3 columns (index, y, x) or 4 (and label), got 2");
}

TEST_CASE("a NumPy file that is cut off or damaged is refused or read, never worse", "[npy]") {
  const auto bytes = read_file(kPointsGolden / "f4.npy");
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_THROWS_AS(sam::decode_npy(std::string_view(bytes).substr(0, size), "a.npy"), IoError);
  CHECK_THROWS_WITH(sam::decode_npy(bytes + "x", "a.npy"),
                    "a.npy: holds 49 bytes of values, expected 4 x 3 numbers of 4 bytes");
  for (std::size_t i = 0; i < 128; ++i)
    for (const char value : {'\0', '9', '(', '\xff'}) {
      auto damaged = bytes;
      damaged[i] = value;
      try {
        sam::decode_npy(damaged, "a.npy");
      } catch (const IoError&) {
      }
    }
}

TEST_CASE("points of the command line are X,Y and perhaps a label", "[prompt_points]") {
  const auto point = sam::parse_point("12, 37.5");
  CHECK((point.x == 12 && point.y == 37.5 && point.foreground));
  CHECK(!sam::parse_point("1,2,0").foreground);
  for (const std::string text : {"", "1", "1,2,3", "1,2,0,0", "a,2", "-1,2", "1;2", "1,", "inf,2"})
    CHECK_THROWS_WITH(
        sam::parse_point(text),
        "--point: expected X,Y or X,Y,LABEL, pixels from the top left and 1 (foreground) or 0, got '" + text +
            "'");
  CHECK_THROWS_AS(sam::parse_point("x"), UsageError);
}
