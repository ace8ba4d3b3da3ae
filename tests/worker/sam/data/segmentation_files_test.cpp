#include "worker/sam/data/segmentation_dataset.h"

#include <algorithm>

#include <ddprun/common/errors.h>
#include <ddprun/data/dataset_files.h>
#include "tests/support/catch.h"
#include "tests/worker/sam/data/segmentation_folder.h"

using namespace ddprun;
using ddprun::sam::find_segmentation_pairs;
using ddprun::test::ContainsSubstring;
using ddprun::test::huge_png;
using ddprun::test::SegmentationFolder;
namespace fs = std::filesystem;

namespace {

/// The message of what() throws as an IoError, without the folder's path.
template <typename Function>
std::string error_of(const SegmentationFolder& folder, Function function) {
  try {
    function();
  } catch (const IoError& error) {
    std::string what = error.what();
    const auto prefix = folder.path.string();
    for (auto at = what.find(prefix); at != what.npos; at = what.find(prefix))
      what.replace(at, prefix.size(), "DIR");
    CHECK(what.find('\n') == what.npos);
    return what;
  }
  return "";
}

std::string finding(const SegmentationFolder& folder) {
  return error_of(folder, [&] { find_segmentation_pairs(folder.path); });
}

std::string reading(const SegmentationFolder& folder) {
  return error_of(folder, [&] {
    for (const auto& pair : find_segmentation_pairs(folder.path)) sam::read_segmented_image(pair);
  });
}

}  // namespace

TEST_CASE("images are numbered by their names, whatever their kind, and found with their masks",
          "[segmentation_files]") {
  const SegmentationFolder folder;
  folder.add("b");
  folder.add("a10");
  folder.add("a2");
  fs::rename(folder.path / "images/b.png", folder.path / "images/B.PNG");
  fs::rename(folder.path / "masks/b.png", folder.path / "masks/B.png");
  fs::copy(fs::path(DDPRUN_GOLDEN_DIR) / "png_labels/picture.jpg", folder.path / "images/c.jpeg");
  folder.add_mask("c.png", 30, 20, [](int x, int) { return x; });
  write_file_atomic(folder.path / "images/notes.txt", "no image");
  write_file_atomic(folder.path / "images/.hidden.png", "no image");
  const auto pairs = find_segmentation_pairs(folder.path);
  std::vector<std::string> names;
  for (const auto& pair : pairs) names.push_back(pair.image.filename().string());
  CHECK(names == std::vector<std::string>{"B.PNG", "a10.png", "a2.png", "c.jpeg"});
  CHECK(pairs[3].masks == std::vector{folder.path / "masks/c.png"});
  const auto image = sam::read_segmented_image(pairs[3]);
  CHECK(image.picture.channels == 3);
  CHECK(image.instances.values[29] == 29);
}

TEST_CASE("a folder for each image, with a file for each instance, is read too", "[segmentation_files]") {
  const SegmentationFolder folder;
  const auto below = GENERATE(as<std::string>(), "", "stage1_train");
  for (const std::string name : {"7f", "0a"}) {
    const auto home = folder.dir.path() / "bowl" / below / name;
    fs::create_directories(home / "images");
    fs::create_directories(home / "masks");
    image::write_png(home / "images" / (name + ".png"), image::make_image(4, 1, 4, 255));
    image::write_png(home / "masks/2.png",
                     SegmentationFolder::grey(4, 1, [](int x, int) { return x == 1 ? 255 : 0; }));
    image::write_png(home / "masks/1.png",
                     SegmentationFolder::grey(4, 1, [](int x, int) { return x == 3 ? 255 : 0; }));
  }
  const auto home = folder.dir.path() / "bowl" / below;
  image::write_png(home / "7f/masks/3.png", image::make_image(4, 1, 1));  // nothing in it
  const auto pairs = find_segmentation_pairs(folder.dir.path() / "bowl");
  REQUIRE(pairs.size() == 2);
  CHECK(pairs[0].image.filename() == "0a.png");
  CHECK(sam::read_segmented_image(pairs[1]).instances.values == std::vector<std::uint16_t>{0, 2, 0, 1});
  for (const auto* file : {"1.png", "2.png"})
    image::write_png(home / "7f/masks" / file, image::make_image(4, 1, 1));
  CHECK_THROWS_WITH(
      sam::read_segmented_image(pairs[1]),
      (home / "7f/masks").string() + ": is empty: all pixels are 0, expected at least one instance");
}

TEST_CASE("the sample that comes with the programs is found and whole", "[segmentation_files]") {
  const auto home = data::find_dataset("nuclei-sample");
  REQUIRE(home);
  const auto pairs = find_segmentation_pairs(*home);
  REQUIRE(pairs.size() == 12);
  for (const auto& pair : pairs) {
    const auto image = sam::read_segmented_image(pair);
    CHECK((image.picture.width == 256 && image.picture.height == 256));
    CHECK(*std::max_element(image.instances.values.begin(), image.instances.values.end()) >= 8);
  }
  CHECK(fs::exists(*home / "README.md"));
}

TEST_CASE("images and masks that do not belong together are named", "[segmentation_files]") {
  const SegmentationFolder folder;
  CHECK(finding(folder) == "DIR/images: holds no image, expected PNG or JPEG files");
  folder.add("a");
  folder.add_image("b.png", 30, 20);
  CHECK(finding(folder) == "DIR/images/b.png: has no mask, expected DIR/masks/b.png");
  fs::remove(folder.path / "images/b.png");
  folder.add_mask("c.png", 30, 20, [](int, int) { return 1; });
  CHECK(finding(folder) == "DIR/masks/c.png: has no image, expected DIR/images/c with .png, .jpg or .jpeg");
  fs::remove(folder.path / "masks/c.png");
  folder.add_mask("a.PNG", 30, 20, [](int, int) { return 1; });
  CHECK(finding(folder) ==
        "DIR/masks/a.png: has the same name as another mask, a.PNG; expected one mask for each image");
  fs::remove(folder.path / "masks/a.PNG");
  folder.add_image("a.jpg", 30, 20);
  CHECK(finding(folder) ==
        "DIR/images/a.png: has the same name as another image, a.jpg; expected one image for the mask a.png");
  fs::remove_all(folder.path / "masks");
  CHECK(finding(folder) == "DIR: has no folder masks/, expected one beside images/");
  fs::remove_all(folder.path / "images");
  CHECK_THAT(finding(folder),
             ContainsSubstring("DIR: holds no images, expected the folders images/ and masks/"));
  fs::remove_all(folder.path);
  CHECK(finding(folder) == "DIR: is not a folder, expected one with images/ and masks/");
}

TEST_CASE("a mask of another size than its image is named with both sizes", "[segmentation_files]") {
  const SegmentationFolder folder;
  folder.add_image("a.png", 30, 20);
  folder.add_mask("a.png", 20, 30, [](int, int) { return 1; });
  CHECK(
      reading(folder) ==
      "DIR/masks/a.png: has 20 x 30 pixels, expected 30 x 20 pixels, the size of its image DIR/images/a.png");
}

TEST_CASE("a mask without an instance is named", "[segmentation_files]") {
  const SegmentationFolder folder;
  folder.add_image("a.png", 30, 20);
  folder.add_mask("a.png", 30, 20, [](int, int) { return 0; });
  CHECK(reading(folder) == "DIR/masks/a.png: is empty: all pixels are 0, expected at least one instance");
}

TEST_CASE("a file that is cut off or no picture is named", "[segmentation_files]") {
  const SegmentationFolder folder;
  folder.add("a");
  const auto image = folder.path / "images/a.png", mask = folder.path / "masks/a.png";
  const auto whole = read_file(image), whole_mask = read_file(mask);
  write_file_atomic(image, whole.substr(0, whole.size() / 2));
  CHECK_THAT(reading(folder), ContainsSubstring("DIR/images/a.png: is not a readable PNG file: "));
  write_file_atomic(image, "hello");
  CHECK(reading(folder) == "DIR/images/a.png: is neither a PNG nor a JPEG image");
  write_file_atomic(image, "");
  CHECK(reading(folder) == "DIR/images/a.png: is empty, expected a PNG or JPEG image");
  const auto jpeg = read_file(fs::path(DDPRUN_GOLDEN_DIR) / "png_labels/picture.jpg");
  write_file_atomic(image, jpeg.substr(0, jpeg.size() - 20));
  CHECK_THAT(reading(folder), ContainsSubstring("DIR/images/a.png: is not a readable JPEG file: "));
  write_file_atomic(image, whole);
  write_file_atomic(mask, whole_mask.substr(0, whole_mask.size() / 2));
  CHECK_THAT(reading(folder), ContainsSubstring("DIR/masks/a.png: is not a readable PNG file: "));
  write_file_atomic(mask, jpeg);
  CHECK_THAT(reading(folder), ContainsSubstring("DIR/masks/a.png: is not a readable PNG file: "));
}

TEST_CASE("an image of too many pixels is refused before it is read, a wide one is not",
          "[segmentation_files]") {
  const SegmentationFolder folder;
  folder.add("a", 30000, 10);
  CHECK(reading(folder) == "");
  write_file_atomic(folder.path / "images/a.png", huge_png(30000, 30000));
  CHECK(reading(folder) ==
        "DIR/images/a.png: is not a readable PNG file: it has too many pixels, 30000 x 30000, expected at "
        "most 67108864 in all");
}

TEST_CASE("decoded images are kept as long as there is room", "[segmentation_files]") {
  const SegmentationFolder folder;
  folder.add("a", 10, 10);
  folder.add("b", 10, 10);
  const auto pairs = find_segmentation_pairs(folder.path);
  const sam::SegmentationStore none(pairs, 0), one(pairs, 999), both(pairs, 1000);
  CHECK(none.get(0) != none.get(0));
  const auto kept = one.get(1);
  CHECK(one.get(1) == kept);
  CHECK(one.get(0) != one.get(0));
  CHECK(one.get(0)->picture.bytes == none.get(0)->picture.bytes);
  const auto first = both.get(0), second = both.get(1);
  CHECK((both.get(0) == first && both.get(1) == second));
}
