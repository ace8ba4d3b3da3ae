
#include <zlib.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/nn/functional/upsampling.h>
#include <torch/types.h>

#include <ddprun/data/dataset.h>
#include <ddprun/data/image_dataset.h>
#include <ddprun/data/loader.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"

using namespace ddprun::data;

namespace {

/// The image of scripts/golden_data.py, channel by channel.
std::vector<std::uint8_t> golden_image(std::int64_t channels, std::int64_t height, std::int64_t width) {
  std::vector<std::uint8_t> image;
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t y = 0; y < height; ++y)
      for (std::int64_t x = 0; x < width; ++x)
        image.push_back(static_cast<std::uint8_t>(y * 31 + x * 7 + c * 101 + y * x));
  return image;
}

unsigned long crc_of(const float* values, std::size_t count) {
  return ::crc32(0, reinterpret_cast<const Bytef*>(values), static_cast<uInt>(count * sizeof(float)));
}

ImageTransform::Options augmented(std::uint64_t seed) {
  return {.mean = {.5f, .5f, .5f}, .std = {.25f, .25f, .25f}, .padding = 4, .flip = true, .seed = seed};
}

/// 600 images of 3 x 8 x 8 whose pixels tell them apart, augmented.
ImageDataset numbered_images(std::uint64_t seed, bool channels_last = false) {
  auto options = augmented(seed);
  options.channels_last = channels_last;
  const auto pixels = torch::arange(600 * 3 * 8 * 8, torch::kInt64).remainder(251).to(torch::kUInt8);
  return {Images{pixels.view({600, 3, 8, 8}), torch::arange(600, torch::kInt64)},
          ImageTransform(std::move(options))};
}

torch::Tensor drain_inputs(Loader& loader) {
  std::vector<torch::Tensor> inputs;
  while (const auto batch = loader.next()) inputs.push_back(batch->input);
  return torch::cat(inputs);
}

/// Pearson's chi squared of counts that should be equal.
double chi_squared(const std::vector<int>& counts) {
  double total = 0, sum = 0;
  for (const int count : counts) total += count;
  const double expected = total / static_cast<double>(counts.size());
  for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

}  // namespace

TEST_CASE("transform equals torchvision's flip, crop, ToTensor and Normalize to the last bit",
          "[image_transform]") {
  const auto cases = ddprun::test::read_golden("image_transform/cases.json");
  REQUIRE(cases.size() == 30);
  for (const auto& golden : cases) {
    CAPTURE(golden.dump());
    const std::int64_t channels = golden["channels"], height = golden["height"], width = golden["width"];
    ImageTransform::Options options;
    for (const double mean : golden["mean"]) options.mean.push_back(static_cast<float>(mean));
    for (const double std : golden["std"]) options.std.push_back(static_cast<float>(std));
    options.padding = golden["padding"];
    const Augmentation augmentation{golden["flip"], golden["top"], golden["left"]};
    const auto image = golden_image(channels, height, width);

    std::vector<float> out(image.size());
    ImageTransform(options).apply(image.data(), height, width, &augmentation, out.data());
    for (std::size_t i = 0; i < 4; ++i) CHECK(out[i] == golden["first"][i].get<float>());
    CHECK(crc_of(out.data(), out.size()) == golden["crc"].get<unsigned long>());

    options.channels_last = true;
    std::vector<float> last(image.size());
    ImageTransform(options).apply(image.data(), height, width, &augmentation, last.data());
    const auto planes =
        torch::from_blob(last.data(), {height, width, channels}).permute({2, 0, 1}).contiguous();
    CHECK(crc_of(planes.const_data_ptr<float>(), out.size()) == golden["crc"].get<unsigned long>());
  }
}

TEST_CASE("transform without augmentation only normalises", "[image_transform]") {
  const auto image = golden_image(3, 6, 5);
  const ImageTransform transform(augmented(1));
  std::vector<float> out(image.size());
  transform.apply(image.data(), 6, 5, nullptr, out.data());
  const auto expected = torch::tensor(image, torch::kUInt8).to(torch::kFloat32).div(255).sub(.5f).div(.25f);
  CHECK(torch::equal(torch::tensor(out), expected));
}

TEST_CASE("augmentation is Philox4x32-10 of seed, epoch and index", "[image_transform]") {
  // The first known answer of Random123: counter and key 0 give 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  const auto drawn = ImageTransform(augmented(0)).draw(0, 0, 6, 5);
  CHECK_FALSE(drawn.flip);
  CHECK(drawn.top == static_cast<int>((std::uint64_t{0xe169c58d} * 9) >> 32));
  CHECK(drawn.left == static_cast<int>((std::uint64_t{0xbc57ac4c} * 9) >> 32));
}

TEST_CASE("augmentation is uniform over images, epochs and seeds", "[image_transform]") {
  const int which = GENERATE(0, 1, 2);  // what runs while the others stand still
  std::vector<int> windows(81), flips(2), pairs(81);
  int before = 0;
  for (int i = 0; i < 20000; ++i) {
    const ImageTransform transform(augmented(which == 2 ? static_cast<std::uint64_t>(i) : 5));
    const auto drawn = transform.draw(which == 1 ? i : 3, which == 0 ? i : 17, 6, 5);
    ++windows[static_cast<std::size_t>(9 * drawn.top + drawn.left)];
    ++flips[drawn.flip ? 1 : 0];
    ++pairs[static_cast<std::size_t>(9 * before + drawn.top)];  // of neighbours: independent
    before = drawn.top;
  }
  // 99.99th percentile of chi squared with 80 and 1 degrees of freedom; the draws are always the same.
  CHECK(chi_squared(windows) < 135);
  CHECK(chi_squared(pairs) < 135);
  CHECK(chi_squared(flips) < 15.2);
}

TEST_CASE("what is not asked for is not done", "[image_transform]") {
  auto options = augmented(3);
  options.flip = false;
  options.padding = 0;
  const ImageTransform transform(options);
  for (int i = 0; i < 100; ++i) {
    const auto drawn = transform.draw(i, i, 6, 5);
    CHECK_FALSE(drawn.flip);
    CHECK(drawn.top == 0);
    CHECK(drawn.left == 0);
  }
}

TEST_CASE("augmented images are the same whatever threads and batch size", "[image_transform]") {
  const auto images = numbered_images(9);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < 600; ++i) order.push_back(i * 7 % 600);
  Loader reference(images, {.batch_size = 600, .threads = 0});
  reference.start_epoch(order, 4);
  const auto expected = drain_inputs(reference);
  for (const int threads : {0, 1, 3})
    for (const std::int64_t batch_size : {1, 64, 599}) {
      Loader loader(images, {.batch_size = batch_size, .threads = threads});
      loader.start_epoch(order, 4);
      CHECK(torch::equal(drain_inputs(loader), expected));
    }
  Loader other(images, {.batch_size = 600, .threads = 1});
  other.start_epoch(order, 5);
  CHECK_FALSE(torch::equal(drain_inputs(other), expected));
  CHECK_FALSE(torch::equal(numbered_images(10).get_epoch_batch(order, 4).input, expected));
}

TEST_CASE("a batch that is finished on its device has the same values to the last bit", "[image_transform]") {
  const std::vector<std::int64_t> indices = {5, 599, 0, 5, 77, 301, 44, 8};
  for (const bool channels_last : {false, true}) {
    auto options = augmented(2);
    options.mean = {.4914f, .4822f, .4465f};  // CIFAR-10's, which round
    options.std = {.2023f, .1994f, .2010f};
    options.channels_last = channels_last;
    const auto images =
        std::make_shared<ImageDataset>(numbered_images(2).images(), ImageTransform(std::move(options)));
    for (const std::int64_t epoch : {0, 7}) {
      const auto raw = images->get_raw_batch(indices, epoch);
      CHECK(raw.input.scalar_type() == torch::kUInt8);
      const auto made = images->prepare(raw);
      const auto expected = images->get_epoch_batch(indices, epoch);
      CHECK(torch::equal(made.input, expected.input));
      CHECK(made.input.strides() == expected.input.strides());
      CHECK(torch::equal(made.target, expected.target));
      CHECK(made.extra.empty());
    }
    const Subset part(images, {44, 3, 9});
    CHECK(torch::equal(part.prepare(part.get_raw_batch({2, 0}, 1)).input,
                       part.get_epoch_batch({2, 0}, 1).input));
  }
}

TEST_CASE("a crop is a window of the padded image, the same on its device", "[image_transform]") {
  for (const int padding : {0, 2}) {
    ImageTransform::Options options{.mean = {.5f}, .std = {.25f}, .padding = padding, .crop = 4, .seed = 1};
    const auto pixels = torch::arange(1, 51).view({1, 1, 5, 10}).to(torch::kUInt8);
    const ImageDataset images(
        {pixels.expand({1000, 1, 5, 10}).contiguous(), torch::zeros({1000}, torch::kInt64)},
        ImageTransform(options));
    std::vector<std::int64_t> all(1000);
    std::iota(all.begin(), all.end(), 0);
    CHECK(images.get_batch({0}).input.sizes() == at::IntArrayRef({1, 1, 5, 10}));
    const auto batch = images.get_epoch_batch(all, 0);
    CHECK(torch::equal(images.prepare(images.get_raw_batch(all, 0)).input, batch.input));
    std::set<std::string> seen;
    const auto padded = torch::constant_pad_nd(pixels, {padding, padding, padding, padding})
                            .to(torch::kFloat32)
                            .div(255)
                            .sub(.5f)
                            .div(.25f);
    for (const auto index : all) {
      const auto drawn = ImageTransform(options).draw(0, index, 5, 10);
      CHECK(torch::equal(batch.input[index],
                         padded[0].slice(1, drawn.top, drawn.top + 4).slice(2, drawn.left, drawn.left + 4)));
      seen.insert(std::to_string(drawn.top) + "," + std::to_string(drawn.left));
    }
    CHECK(seen.size() == static_cast<std::size_t>((2 + 2 * padding) * (7 + 2 * padding)));
  }
}

TEST_CASE("images grow with the epochs, and validation sees them whole", "[image_transform]") {
  CHECK_FALSE(parse_image_sizes(""));
  for (const auto* text :
       {"0:1", "14:0.5", "14:0.6,28:0.5", "14:x,28", "14:0,28", "14:1,28", "14:0.5,,28", "a", "14:nan,28"})
    CHECK_FALSE(parse_image_sizes(text));
  const auto sizes = parse_image_sizes("3:0.5,4:0.35,6");
  REQUIRE(sizes);
  for (const bool channels_last : {false, true}) {
    const auto whole = std::make_shared<ImageDataset>(numbered_images(2, channels_last));
    const ProgressiveResizing growing(whole, *sizes, 28);
    std::string sides;
    for (const std::int64_t epoch : {0, 13, 14, 23, 24, 27, 99}) sides += std::to_string(growing.side(epoch));
    CHECK(sides == "3344666");
    for (const std::int64_t epoch : {0, 14, 24}) {
      const auto batch = growing.get_epoch_batch({5, 9}, epoch),
                 expected = whole->get_epoch_batch({5, 9}, epoch);
      const auto raw = growing.prepare(growing.get_raw_batch({5, 9}, epoch));
      CHECK(torch::equal(raw.input, batch.input));
      CHECK(raw.extra.empty());
      CHECK(batch.input.is_contiguous(channels_last ? at::MemoryFormat::ChannelsLast
                                                    : at::MemoryFormat::Contiguous));
      CHECK(torch::equal(batch.target, expected.target));
      const auto side = growing.side(epoch);
      const auto scaled =
          torch::nn::functional::interpolate(expected.input, torch::nn::functional::InterpolateFuncOptions()
                                                                 .size(std::vector<std::int64_t>{side, side})
                                                                 .mode(torch::kBilinear)
                                                                 .align_corners(false)
                                                                 .antialias(true));
      CHECK(torch::allclose(batch.input, scaled));
    }
    CHECK(torch::equal(growing.get_batch({5}).input, whole->get_batch({5}).input));
  }
}

TEST_CASE("channels-last batches hold the same values", "[image_transform]") {
  const std::vector<std::int64_t> indices = {5, 599, 0, 5};
  const auto planes = numbered_images(2).get_epoch_batch(indices, 1).input;
  const auto last = numbered_images(2, true).get_epoch_batch(indices, 1).input;
  CHECK(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(planes.is_contiguous());
  CHECK(torch::equal(planes, last));
}

TEST_CASE("image dataset augments for training and not else, and gives the labels", "[image_transform]") {
  const auto images = numbered_images(2);
  const std::vector<std::int64_t> indices = {5, 599, 0, 5};
  const auto plain = images.get_batch(indices), epoch = images.get_epoch_batch(indices, 0);
  const auto expected = images.images().images_NCHW.index_select(0, torch::tensor(indices, torch::kInt64));
  CHECK(torch::equal(plain.input, expected.to(torch::kFloat32).div(255).sub(.5f).div(.25f)));
  CHECK_FALSE(torch::equal(plain.input, epoch.input));
  for (const auto& batch : {plain, epoch})
    CHECK(torch::equal(batch.target, torch::tensor({5, 599, 0, 5}, torch::kInt64)));
  CHECK(images.get_batch({}).size() == 0);
}

TEST_CASE("transform and image dataset refuse what does not fit", "[image_transform]") {
  using Options = ImageTransform::Options;
  CHECK_THROWS_AS(ImageTransform(Options{}), std::invalid_argument);
  CHECK_THROWS_AS(ImageTransform({.mean = {0.f, 0.f}, .std = {1.f}}), std::invalid_argument);
  CHECK_THROWS_AS(ImageTransform({.mean = {0.f}, .std = {0.f}}), std::invalid_argument);
  CHECK_THROWS_AS(ImageTransform({.mean = {0.f}, .std = {NAN}}), std::invalid_argument);
  CHECK_THROWS_AS(ImageTransform({.mean = {0.f}, .std = {1.f}, .padding = -1}), std::invalid_argument);
  CHECK_THROWS_AS(ImageTransform({.mean = {0.f}, .std = {1.f}, .crop = -1}), std::invalid_argument);
  const ImageTransform grey({.mean = {0.f}, .std = {1.f}});
  const auto pixels = torch::zeros({2, 1, 4, 4}, torch::kUInt8);
  const auto labels = torch::zeros({2}, torch::kInt64);
  CHECK_NOTHROW(ImageDataset({pixels, labels}, grey));
  CHECK_THROWS_WITH(
      ImageDataset({pixels, labels}, ImageTransform({.mean = {0.f}, .std = {1.f}, .padding = 1, .crop = 7})),
      "ImageTransform: expected crops of at most 6 pixels, got 7");
  CHECK_THROWS_AS(ImageDataset({pixels[0], labels}, grey), std::invalid_argument);
  CHECK_THROWS_AS(ImageDataset({pixels.to(torch::kFloat32), labels}, grey), std::invalid_argument);
  CHECK_THROWS_AS(ImageDataset({pixels.transpose(2, 3).slice(2, 1), labels}, grey), std::invalid_argument);
  CHECK_THROWS_AS(ImageDataset({pixels, labels.slice(0, 1)}, grey), std::invalid_argument);
  CHECK_THROWS_AS(ImageDataset({pixels, labels.to(torch::kInt32)}, grey), std::invalid_argument);
  CHECK_THROWS_WITH(ImageDataset({pixels.expand({2, 3, 4, 4}).contiguous(), labels}, grey),
                    "ImageDataset: expected a mean for each of 3 channels, got 1");
}
