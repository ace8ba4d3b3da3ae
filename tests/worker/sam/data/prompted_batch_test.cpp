#include "worker/sam/data/prompted_batch.h"

#include <torch/types.h>

#include <algorithm>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/image/image_files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::sam::read_prompted_picture;
using ddprun::test::ContainsSubstring;

namespace {

using Shape = std::vector<std::int64_t>;

const sam::SamProcessor kSmallProcessor({.image_size = 64, .mask_size = 16});

struct OneImage {
  OneImage() { image::write_png(path, image::make_image(32, 16, 3, 200)); }
  TempDir dir;
  std::filesystem::path path = dir.path() / "own.png";
};

}  // namespace

TEST_CASE("an image of one's own with its points is a batch of one without a mask", "[prompted_batch]") {
  const OneImage image;
  const auto batch =
      sam::make_prompted_batch({read_prompted_picture(image.path, {"8,4", "31.5,0,0"})}, kSmallProcessor);
  CHECK(batch.size() == 1);
  CHECK(batch.input.equal(kSmallProcessor.pixel_values(image::make_image(32, 16, 3, 200)).unsqueeze(0)));
  CHECK(sam::points_of(batch).equal(torch::tensor({16.f, 8.f, 63.f, 0.f}).view({1, 1, 2, 2})));
  CHECK(sam::point_labels_of(batch).equal(torch::tensor({1, 0}, torch::kInt64).view({1, 1, 2})));
  CHECK(sam::original_sizes_of(batch).equal(torch::tensor({{16, 32}}, torch::kInt64)));
  CHECK(batch.target.equal(torch::zeros({1, 1, 16, 16})));
  CHECK(sam::truth_of(batch, 0).equal(torch::zeros({16, 32}, torch::kUInt8)));
  CHECK(sam::picture_of(batch, 0).equal(torch::full({16, 32, 3}, 200, torch::kUInt8)));
}

TEST_CASE("the picture of a batch outlives what it was made of", "[prompted_batch]") {
  torch::Tensor picture;
  {
    const OneImage image;
    picture = sam::picture_of(
        sam::make_prompted_batch({read_prompted_picture(image.path, {"0,0"})}, kSmallProcessor), 0);
  }
  CHECK(picture.eq(200).all().item<bool>());
}

TEST_CASE("a row to be drawn has picture, points and masks at the picture's size", "[prompted_batch]") {
  sam::PromptedPicture wide{std::make_shared<image::Image>(image::make_image(32, 16, 3, 200)),
                            {{.x = 8, .y = 4}, {.x = 31, .y = 15, .foreground = false}},
                            torch::eye(32, torch::kUInt8).slice(0, 0, 16)};
  sam::PromptedPicture high{std::make_shared<image::Image>(image::make_image(7, 50, 3, 9)),
                            {{.x = 3, .y = 49}}};
  const auto batch = sam::make_prompted_batch({wide, high}, kSmallProcessor);
  const auto row = sam::prediction_row(batch, 0, torch::ones({16, 32}, torch::kBool));
  CHECK((row.picture.width == 32 && row.picture.height == 16 && row.picture.bytes[0] == 200));
  REQUIRE(row.points.size() == 2);
  CHECK(row.points[0].x == test::Approx(8));
  CHECK(row.points[0].y == test::Approx(4));
  CHECK((row.points[0].foreground && !row.points[1].foreground));
  CHECK((*row.truth.pixel(3, 3) == 255 && *row.truth.pixel(4, 3) == 0));
  CHECK(std::count(row.predicted.bytes.begin(), row.predicted.bytes.end(), 255) == 16 * 32);
  const auto other = sam::prediction_row(batch, 1, torch::zeros({50, 7}));
  REQUIRE(other.points.size() == 1);  // without the padding
  CHECK(other.points[0].x == test::Approx(3));
  CHECK(other.points[0].y == test::Approx(49));
}

TEST_CASE("what cannot be predicted is said in one line", "[prompted_batch]") {
  const OneImage image;
  CHECK_THROWS_WITH(read_prompted_picture(image.path, {}),
                    "--point: expected at least one point, X,Y, to predict a mask of " + image.path.string());
  CHECK_THROWS_WITH(
      read_prompted_picture(image.path, {"1,1", "32,0"}),
      "--point 32,0: expected a point inside " + image.path.string() + ", which has 32 x 16 pixels");
  CHECK_THROWS_AS(read_prompted_picture(image.path, {"1,16"}), UsageError);
  CHECK_THROWS_AS(read_prompted_picture(image.path, {"a"}), UsageError);
  CHECK_THROWS_AS(read_prompted_picture(image.dir.path() / "none.png", {"1,1"}), IoError);
}

TEST_CASE("a mask is written as black and white of its size", "[prompted_batch]") {
  const TempDir dir;
  const auto path = dir.path() / "mask.png";
  const auto mask = torch::arange(15).view({3, 5}).remainder(4).eq(1);
  for (const auto type : {torch::kBool, torch::kUInt8, torch::kFloat}) {
    sam::write_mask(path, mask.to(type));
    const auto picture = image::read_png(path);
    REQUIRE((picture.width == 5 && picture.height == 3 && picture.channels == 1));
    for (int y = 0; y < 3; ++y)
      for (int x = 0; x < 5; ++x) CHECK(*picture.pixel(x, y) == (mask[y][x].item<bool>() ? 255 : 0));
  }
  sam::write_mask(path, mask.t());
  CHECK(image::read_png(path).width == 3);
  CHECK_THROWS_WITH(sam::write_mask("/no/such/folder/mask.png", mask),
                    ContainsSubstring("/no/such/folder/mask.png"));
  CHECK_THROWS_AS(sam::write_mask(path, mask.unsqueeze(0)), c10::Error);
}
