#include "worker/sam/data/segmentation_dataset.h"

#include <sys/stat.h>
#include <torch/types.h>

#include <set>
#include <stdexcept>

#include <ddprun/common/errors.h>
#include <ddprun/data/loader.h>
#include "tests/support/catch.h"
#include "tests/worker/sam/data/segmentation_folder.h"

using namespace ddprun;
using ddprun::data::Batch;
using ddprun::sam::SegmentationDataset;
using ddprun::test::ContainsSubstring;
using ddprun::test::SegmentationFolder;
using torch::Tensor;

namespace {

using Shape = std::vector<std::int64_t>;

const sam::SamProcessor kProcessor({.image_size = 64, .mask_size = 16});

struct Images : SegmentationFolder {
  Images() {
    add("a");          // 30 x 20
    add("b", 16, 48);  // higher than wide
    add("c");
    add_mask("c.png", 30, 20, [](int x, int y) { return x < 10 && y < 10 ? 255 : 0; });  // one instance
  }
  SegmentationDataset set(const SegmentationDataset::Options& options = {}) const {
    return SegmentationDataset(path, kProcessor, options);
  }
  std::filesystem::path points(const std::string& text) const {
    write_file_atomic(dir.path() / "points.csv", "index,y,x,label\n" + text);
    return dir.path() / "points.csv";
  }
};

bool equal(const Batch& a, const Batch& b) {
  bool same = a.input.equal(b.input) && a.target.equal(b.target) && a.extra.size() == b.extra.size();
  for (std::size_t i = 0; same && i < a.extra.size(); ++i) same = a.extra[i].equal(b.extra[i]);
  return same;
}

/// What is right where the left third is: instance 1 of images 0 and 1.
Tensor left_third(std::int64_t height, std::int64_t width) {
  auto region = torch::zeros({height, width}, torch::kUInt8);
  region.slice(1, 0, width / 3).fill_(1);
  return region;
}

}  // namespace

TEST_CASE("images and masks travel to a device as bytes", "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set({.augment = true});
  const auto raw = set.get_raw_batch({0, 1, 2}, 3);
  CHECK(raw.input.scalar_type() == torch::kUInt8);
  CHECK(raw.target.scalar_type() == torch::kUInt8);
  CHECK(equal(set.prepare(raw), set.get_epoch_batch({0, 1, 2}, 3)));
  CHECK_FALSE(equal(set.prepare(raw), set.get_epoch_batch({0, 1, 2}, 4)));
  const auto fixed = set.with_fixed_points();
  CHECK(equal(fixed->prepare(fixed->get_raw_batch({1}, 7)), fixed->get_batch({1})));
}

TEST_CASE("a batch holds images of any sizes in the model's frame and at their own size",
          "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set({.points = images.points("0,5,3,1\n0,6,15,0\n1,40,2,1\n")});
  REQUIRE(set.size() == 3);
  const auto batch = set.get_batch({1, 0});
  CHECK(batch.input.sizes().vec() == Shape{2, 3, 64, 64});
  CHECK(batch.input.scalar_type() == torch::kFloat);
  CHECK(batch.target.sizes().vec() == Shape{2, 1, 16, 16});
  REQUIRE(batch.extra.size() == 4 + 2);
  REQUIRE(batch.shown.size() == 2);
  CHECK(sam::points_of(batch).sizes().vec() == Shape{2, 1, 2, 2});
  CHECK(sam::points_of(batch).scalar_type() == torch::kFloat);
  CHECK(sam::point_labels_of(batch).equal(torch::tensor({1, -10, 1, 0}, torch::kInt64).view({2, 1, 2})));
  CHECK(sam::original_sizes_of(batch).equal(torch::tensor({48, 16, 20, 30}, torch::kInt64).view({2, 2})));
  CHECK(sam::resized_sizes_of(batch).equal(torch::tensor({64, 21, 43, 64}, torch::kInt64).view({2, 2})));
  CHECK(sam::truth_of(batch, 0).equal(left_third(48, 16)));
  CHECK(sam::truth_of(batch, 1).equal(left_third(20, 30)));
  CHECK(sam::picture_of(batch, 0).sizes().vec() == Shape{48, 16, 3});
  CHECK(sam::picture_of(batch, 1)[2][4][0].item<int>() == 4 * 7 + 2 * 3);
}

TEST_CASE("points come as x, y in the model's frame", "[segmentation_dataset]") {
  const Images images;
  const auto batch = images.set({.points = images.points("0,5,3,1\n")}).get_batch({0});
  const auto point = sam::points_of(batch).flatten();
  CHECK(point[0].item<double>() == test::Approx(3 * 64. / 30));
  CHECK(point[1].item<double>() == test::Approx(5 * 43. / 20));
}

TEST_CASE("the low-resolution target is the mask at the image's place, without the padding",
          "[segmentation_dataset]") {
  const Images images;
  const auto batch = images.set({.points = images.points("1,40,2,1\n")}).get_batch({1});
  CHECK(batch.target.equal(
      kProcessor.low_resolution_mask(left_third(48, 16), 16).to(torch::kFloat).view({1, 1, 16, 16})));
  CHECK(batch.target.slice(3, 6).sum().item<double>() == 0);
  CHECK(batch.target.sum().item<double>() > 0);
}

TEST_CASE("what is right is the union of the instances that foreground points lie in",
          "[segmentation_dataset]") {
  const Images images;
  const auto truth = [&](const std::string& text) {
    const auto set = images.set({.points = images.points(text)});
    return sam::truth_of(set.get_batch({0}), 0);
  };
  const auto left = left_third(20, 30), right = left.flip(1), none = torch::zeros_like(left);
  CHECK(truth("0,5,3,1\n").equal(left));
  CHECK(truth("0,5,3,1\n0,19,29,1\n").equal(left + right));
  CHECK(truth("0,5,3,1\n0,5,29,0\n").equal(left));
  CHECK(truth("0,5,15,1\n").equal(none));         // into the background
  CHECK(truth("0,5,3,0\n").equal(none));          // nothing is meant
  CHECK(truth("1,5,3,1\n").equal(left + right));  // no point: all instances
  CHECK(truth("0,5,9.4,1\n").equal(left));        // rounded to pixel 9
  CHECK(truth("0,5,9.6,1\n").equal(none));        // to pixel 10
  CHECK(truth("0,19.9,29.9,1\n").equal(right));
}

TEST_CASE("images without a point have one that is none", "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set({.points = images.points("0,5,3,1\n")});
  const auto batch = set.get_batch({1, 2});
  CHECK(sam::points_of(batch).equal(torch::full({2, 1, 1, 2}, -10.f)));
  CHECK(sam::point_labels_of(batch).equal(torch::full({2, 1, 1}, -10, torch::kInt64)));
}

TEST_CASE("points that are drawn lie in instances, other ones in every epoch", "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set({.points_per_image = 3, .seed = 7});
  std::set<std::vector<float>> seen;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const auto batch = set.get_epoch_batch({0, 2}, epoch);
    REQUIRE(sam::point_labels_of(batch).eq(1).all().item<bool>());
    const auto points = sam::points_of(batch).view({2, 3, 2});
    const auto xs = points.select(2, 0).mul(30. / 64).round().to(torch::kLong);
    const auto ys = points.select(2, 1).mul(20. / 43).round().to(torch::kLong);
    for (std::int64_t i = 0; i < 2; ++i)
      CHECK(sam::truth_of(batch, i).index({ys[i], xs[i]}).eq(1).all().item<bool>());
    CHECK(sam::truth_of(batch, 1).sum().item<int>() == 100);
    seen.insert({points.const_data_ptr<float>(), points.const_data_ptr<float>() + points.numel()});
  }
  CHECK(seen.size() == 20);
}

TEST_CASE("an image has several prompts, each with its own mask, the first as if it were alone",
          "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set({.prompts_per_image = 6, .seed = 7}), alone = images.set({.seed = 7});
  std::set<std::vector<float>> seen;
  int inside = 0;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    const auto batch = set.get_epoch_batch({0, 2}, epoch), single = alone.get_epoch_batch({0, 2}, epoch);
    REQUIRE(batch.target.sizes() == at::IntArrayRef{2, 6, 16, 16});
    REQUIRE(sam::points_of(batch).sizes() == at::IntArrayRef{2, 6, 1, 2});
    CHECK(batch.target.narrow(1, 0, 1).equal(single.target));
    CHECK(sam::points_of(batch).narrow(1, 0, 1).equal(sam::points_of(single)));
    CHECK(sam::truth_of(batch, 0).equal(sam::truth_of(single, 0)));
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t p = 0; p < 6; ++p) {  // the point is inside its own mask
        const auto at = sam::points_of(batch)[i][p][0].div(4).floor().to(torch::kLong);
        inside += batch.target[i][p][at[1].item<int>()][at[0].item<int>()].item<int>();
        seen.insert({sam::points_of(batch)[i][p][0][0].item<float>(),
                     sam::points_of(batch)[i][p][0][1].item<float>()});
      }
  }
  CHECK(inside > 50);  // of 60; a small mask's border can be a pixel off
  CHECK(seen.size() > 20);
  CHECK(set.get_batch({0, 2}).target.size(1) == 6);
  CHECK(sam::truths_of(set.get_batch({2}), 0).sizes() == at::IntArrayRef{6, 20, 30});
}

TEST_CASE("each instance is drawn as often, whatever its size", "[segmentation_dataset]") {
  const SegmentationFolder folder;
  folder.add_image("a.png", 100, 10);
  folder.add_mask("a.png", 100, 10, [](int x, int) { return x == 0 ? 9 : 200; });
  const SegmentationDataset set(folder.path, sam::SamProcessor({.image_size = 16, .mask_size = 4}), {});
  int small = 0;
  for (std::int64_t epoch = 0; epoch < 300; ++epoch)
    small += sam::truth_of(set.get_epoch_batch({0}, epoch), 0).sum().item<int>() == 10 ? 1 : 0;
  CHECK(small > 110);
  CHECK(small < 190);
}

TEST_CASE("what is drawn depends on seed, epoch and index alone", "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set({.seed = 3}), again = images.set({.seed = 3, .cache_bytes = 1 << 20});
  const auto both = set.get_epoch_batch({0, 2}, 5);
  CHECK(equal(both, again.get_epoch_batch({0, 2}, 5)));
  CHECK(equal(both, again.get_epoch_batch({0, 2}, 5)));  // out of the cache
  CHECK(sam::points_of(set.get_epoch_batch({2}, 5))[0].equal(sam::points_of(both)[1]));
  CHECK(!equal(both, images.set({.seed = 4}).get_epoch_batch({0, 2}, 5)));
  CHECK(equal(set.get_batch({1}), again.get_batch({1})));
  CHECK(!equal(set.get_batch({0, 1, 2}), images.set({.seed = 4}).get_batch({0, 1, 2})));
}

TEST_CASE("validation has the same points in every epoch", "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set({.seed = 3});
  const auto fixed = set.with_fixed_points();
  const auto expected = set.get_batch({0, 1, 2});
  for (std::int64_t epoch = 0; epoch < 5; ++epoch)
    CHECK(equal(fixed->get_epoch_batch({0, 1, 2}, epoch), expected));
  CHECK(!equal(set.get_epoch_batch({0, 1, 2}, 1), set.get_epoch_batch({0, 1, 2}, 2)));
}

TEST_CASE("batches for training and those for validation have their pictures", "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set();
  for (const auto& batch : {set.get_epoch_batch({0, 1, 2}, 0), set.get_batch({0, 1, 2})}) {
    REQUIRE(batch.shown.size() == 3);
    CHECK(sam::picture_of(batch, 1).sizes().vec() == Shape{48, 16, 3});
  }
}

TEST_CASE("loader threads read what one would, and hand on what is wrong", "[segmentation_dataset]") {
  const Images images;
  const auto set = images.set({.cache_bytes = 3000});
  data::Loader inline_loader(set, {.batch_size = 2, .threads = 0}),
      threads(set, {.batch_size = 2, .threads = 3});
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<std::int64_t> order = {2, 0, 1, 1, 0};
    inline_loader.start_epoch(order, epoch);
    threads.start_epoch(order, epoch);
    while (auto expected = inline_loader.next()) CHECK(equal(*threads.next(), *expected));
    CHECK(!threads.next());
  }
  const auto broken = images.set();
  write_file_atomic(images.path / "images/c.png", "broken");
  data::Loader loader(broken, {.batch_size = 1, .threads = 2});
  loader.start_epoch({0, 2});
  CHECK(loader.next());
  CHECK_THROWS_WITH(loader.next(), ContainsSubstring("images/c.png: is neither a PNG nor a JPEG image"));
}

TEST_CASE("a point outside its image is named with the file's line, the image and its size",
          "[segmentation_dataset]") {
  const Images images;
  const auto file = images.points("0,5,3,1\n0,20,29.5,1\n");
  const auto expected = file.string() + ": line 3: expected a point inside image 0, " +
                        (images.path / "images/a.png").string() +
                        ", which has 30 x 20 pixels, got y 20, x 29.5";
  CHECK_THROWS_WITH(images.set({.points = file}), expected);
  CHECK_THROWS_WITH(images.set({.points = images.points("1,2,16,1\n")}),
                    ContainsSubstring("line 2: expected a point inside image 1"));
}

TEST_CASE("points of images that are not there and wrong options are refused at once",
          "[segmentation_dataset]") {
  const Images images;
  CHECK_THROWS_WITH(
      images.set({.points = images.points("3,1,1,1\n")}),
      ContainsSubstring("points.csv: line 2: expected an index from 0 to 2, one of 3 images, got 3"));
  CHECK_THROWS_AS(images.set({.points = "/no/such/points.csv"}), IoError);
  CHECK_THROWS_AS(images.set({.points_per_image = 0}), std::invalid_argument);
  CHECK_THROWS_AS(images.set({.points_per_image = 257}), std::invalid_argument);
  CHECK_THROWS_AS(images.set({.prompts_per_image = 0}), std::invalid_argument);
  CHECK_THROWS_AS(images.set({.points_per_image = 200, .prompts_per_image = 6}), std::invalid_argument);
}

TEST_CASE("what headers tell is refused before training, for PNG and JPEG images", "[segmentation_dataset]") {
  const Images images;
  images.add_mask("b.png", 16, 47, [](int, int) { return 1; });
  CHECK_THROWS_WITH(images.set(),
                    ContainsSubstring("masks/b.png: has 16 x 47 pixels, expected 16 x 48 pixels"));
  images.add_mask("b.png", 16, 48, [](int, int) { return 1; });
  const std::filesystem::path golden = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "png_labels/picture.jpg";
  std::filesystem::copy(golden, images.path / "images/d.jpg");
  images.add_mask("d.png", 30, 21, [](int, int) { return 1; });
  CHECK_THROWS_WITH(images.set(),
                    ContainsSubstring("masks/d.png: has 30 x 21 pixels, expected 30 x 20 pixels"));
  images.add_mask("d.png", 30, 20, [](int, int) { return 1; });
  CHECK(images.set().size() == 4);
  write_file_atomic(images.path / "images/a.png", "");
  CHECK_THROWS_WITH(images.set(), ContainsSubstring("images/a.png: is empty, expected a PNG or JPEG image"));
}

TEST_CASE("the sizes of all masks are looked at before training, where each instance has one",
          "[segmentation_dataset]") {
  const TempDir dir;
  const auto home = dir.path() / "a";
  std::filesystem::create_directories(home / "images");
  std::filesystem::create_directories(home / "masks");
  image::write_png(home / "images/a.png", image::make_image(30, 20, 3));
  const auto add_mask = [&](const char* name, int width) {
    image::write_png(home / "masks" / name, image::make_image(width, 20, 1, 255));
  };
  add_mask("1.png", 30);
  add_mask("2.png", 31);
  add_mask("3.png", 30);
  const auto found = [&] { return SegmentationDataset(dir.path(), kProcessor, {}).size(); };
  CHECK_THROWS_WITH(found(), ContainsSubstring("masks/2.png: has 31 x 20 pixels, expected 30 x 20 pixels"));
  add_mask("2.png", 30);
  CHECK(found() == 1);
}

TEST_CASE("a header with more pixels than can be counted is refused before training",
          "[segmentation_dataset]") {
  const Images images;
  const auto bytes = test::huge_png(0xffffffff, 0xffffffff);  // as a signed product: fewer than none
  write_file_atomic(images.path / "images/b.png", bytes);
  write_file_atomic(images.path / "masks/b.png", bytes);
  CHECK_THROWS_WITH(images.set(), ContainsSubstring("images/b.png: is not a readable PNG file"));
}

TEST_CASE("a FIFO among images or masks is refused at once", "[segmentation_dataset]") {
  const Images images;
  const auto path = images.path / GENERATE(as<std::string>(), "images/b.png", "masks/b.png");
  std::filesystem::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(images.set(), path.string() + ": is a FIFO or a device, expected a regular file");
}

TEST_CASE("a very wide image is an example like another", "[segmentation_dataset]") {
  const SegmentationFolder folder;
  folder.add("wide", 30000, 6);
  const SegmentationDataset set(folder.path, kProcessor, {});
  const auto batch = set.get_batch({0});
  CHECK(batch.input.sizes().vec() == Shape{1, 3, 64, 64});
  CHECK(sam::resized_sizes_of(batch).equal(torch::tensor({{1, 64}}, torch::kInt64)));
  CHECK(batch.input.isfinite().all().item<bool>());
}

TEST_CASE("in training, images are turned and mirrored in eight ways, with their masks and points",
          "[segmentation_dataset]") {
  const Images images;
  const auto points = images.points("0,3,4,1\n");  // in instance 1, the left third of 30 x 20 pixels
  const auto set = images.set({.points = points, .augment = true});
  const auto plain = set.get_batch({0});
  std::set<std::vector<float>> seen;
  std::set<float> brightness;
  for (std::int64_t epoch = 0; epoch < 60; ++epoch) {
    const auto batch = set.get_epoch_batch({0}, epoch);
    CHECK(equal(batch, set.get_epoch_batch({0}, epoch)));
    const auto& truth = sam::truth_of(batch, 0);
    const auto at = sam::prediction_row(batch, 0, truth).points.at(0);
    const auto x = std::lround(at.x), y = std::lround(at.y);
    // One of the eight images of (4, 3), on the third of the mask that it is in.
    CHECK(truth.index({y, x}).item<int>() == 1);
    CHECK(truth.sum().item<int>() == sam::truth_of(plain, 0).sum().item<int>());
    brightness.insert(batch.input.max().item<float>());
    seen.insert({static_cast<float>(truth.size(0)), static_cast<float>(x), static_cast<float>(y)});
  }
  CHECK(seen.size() == 8);
  CHECK(brightness.size() > 20);
  CHECK(equal(set.with_fixed_points()->get_epoch_batch({0}, 5), plain));
  CHECK(equal(images.set({.points = points}).get_epoch_batch({0}, 5), plain));
}
