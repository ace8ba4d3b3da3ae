#include "worker/sam/data/prompted_batch.h"

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

#include <ddprun/image/image.h>
#include <ddprun/serialize/safetensors.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/worker/ddprun/ddp/parity_models.h"

using namespace ddprun;
using namespace ddprun::test;
using sam::ImageSize;
using sam::SamProcessor;

namespace {

/// As scripts/golden_sam.py's pictures().
image::Image make_picture(ImageSize size) {
  auto picture = image::make_image(static_cast<int>(size.width), static_cast<int>(size.height), 3);
  const auto noise =
      120 * formula("picture " + std::to_string(size.height) + " " + std::to_string(size.width),
                    {size.height, size.width, 3});
  const auto* value = noise.const_data_ptr<double>();
  for (int y = 0; y < picture.height; ++y)
    for (int x = 0; x < picture.width; ++x)
      for (int c = 0; c < 3; ++c)
        picture.pixel(x, y)[c] = static_cast<std::uint8_t>(
            std::clamp((y / 5 + x / 7) % 3 * 80 + c * 15 + 20 + *value++, 0.0, 255.0));
  return picture;
}

struct ProcessorGolden {
  nlohmann::json file = read_golden("sam_processor/cases.json");
  std::map<std::string, at::Tensor> tensors;
  SamProcessor processor{{.image_size = file["side"]}};
  ProcessorGolden() {
    const auto path = std::filesystem::path(DDPRUN_GOLDEN_DIR) / "sam_processor" / "pictures.safetensors";
    for (const auto& [name, tensor] : serialize::read_safetensors(path).tensors) tensors[name] = tensor;
  }
};

ImageSize size_of(const nlohmann::json& pair) { return {pair[0], pair[1]}; }

std::string name_of(ImageSize size) { return std::to_string(size.height) + "x" + std::to_string(size.width); }

torch::Tensor tensor_of(const nlohmann::json& rows) {
  std::vector<double> values;
  for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
  return torch::tensor(values, torch::kDouble).view({static_cast<std::int64_t>(rows.size()), -1});
}

/// The bytes that pixel values were made of.
torch::Tensor bytes_of(const torch::Tensor& pixel_values) {
  const auto channel = [](std::array<double, 3> values) {
    return torch::tensor(at::ArrayRef<double>(values), torch::kFloat).view({3, 1, 1});
  };
  const SamProcessor::Options defaults;
  return (pixel_values * channel(defaults.std) + channel(defaults.mean)) * 255;
}

}  // namespace

TEST_CASE("pictures of odd sizes become SamProcessor's inputs, to one in 255 of Pillow's",
          "[sam_processor]") {
  const ProcessorGolden golden;
  for (const auto& one : golden.file["cases"]) {
    const auto size = size_of(one["size"]);
    CAPTURE(name_of(size));
    const auto values = golden.processor.pixel_values(make_picture(size));
    CHECK(golden.processor.resized(size) == size_of(one["resized"]));
    for (const auto* by : {" torchvision", " pillow"}) {
      CAPTURE(by);
      const auto expected = golden.tensors.at(name_of(size) + by).to(torch::kFloat);
      const auto bytes = bytes_of(values);
      // Padding is 0 after normalising: the mean, whatever that is in bytes.
      const auto difference = (bytes.round().clamp(0, 255) - expected).abs();
      const bool is_pillow = by != std::string(" torchvision");  // which rounds elsewhere
      CHECK(difference.max().item<float>() <= (is_pillow ? 1 : 0));
      CHECK((difference > 0).to(torch::kFloat).mean().item<float>() < 0.1);
      CHECK((bytes - bytes.round())
                .abs()
                .narrow(1, 0, one["resized"][0])
                .narrow(2, 0, one["resized"][1])
                .max()
                .item<float>() < 1e-3);
      const double sum = golden.tensors.at(name_of(size) + by + " sum").item<double>();
      CHECK(std::abs(values.sum().item<double>() - sum) < 0.02 * static_cast<double>(values.numel()));
    }
  }
}

TEST_CASE("grey pictures and those with an alpha channel are processed as RGB", "[sam_processor]") {
  const SamProcessor processor({.image_size = 16});
  const auto grey = image::make_image(9, 20, 1, 77), rgb = image::make_image(9, 20, 3, 77);
  CHECK(processor.pixel_values(grey).equal(processor.pixel_values(rgb)));
  CHECK(processor.pixel_values(image::make_image(20, 9, 4, 255)).narrow(1, 0, 7).min().item<float>() > 2);
  CHECK(processor.pixel_values(rgb).narrow(2, 8, 8).abs().max().item<float>() == 0);
}

TEST_CASE("points and boxes go to the model's frame as SamProcessor's, in double precision",
          "[sam_processor]") {
  const ProcessorGolden golden;
  for (const auto& one : golden.file["cases"]) {
    const auto size = size_of(one["size"]);
    CAPTURE(name_of(size));
    const auto points = golden.processor.points(tensor_of(one["points"]), size);
    CHECK(points.scalar_type() == torch::kDouble);
    CHECK(points.equal(tensor_of(one["new_points"])));
    const auto box = torch::tensor(one["box"].get<std::vector<double>>(), torch::kFloat);  // as there
    CHECK(torch::allclose(golden.processor.boxes(box, size),
                          torch::tensor(one["new_box"].get<std::vector<double>>(), torch::kDouble), 1e-12,
                          1e-12));
  }
}

TEST_CASE("masks shrink as SamProcessor's segmentation maps", "[sam_processor]") {
  const ProcessorGolden golden;
  const std::int64_t side = golden.file["side"].get<std::int64_t>() / 4;
  for (const auto& one : golden.file["cases"]) {
    const auto size = size_of(one["size"]);
    CAPTURE(name_of(size));
    auto picture = make_picture(size);
    const auto mask =
        torch::from_blob(picture.bytes.data(), {size.height, size.width, 3}, torch::kByte).select(2, 0) > 100;
    const auto low = golden.processor.low_resolution_mask(mask, side);
    CHECK(low.scalar_type() == torch::kBool);
    CHECK(low.to(torch::kByte).equal(golden.tensors.at(name_of(size) + " mask")));
  }
}

TEST_CASE("masks go back to the image's size as by post_process_masks", "[sam_processor]") {
  const ProcessorGolden golden;
  const std::int64_t side = golden.file["side"].get<std::int64_t>() / 4;
  for (const auto& one : golden.file["cases"]) {
    const auto size = size_of(one["size"]);
    CAPTURE(name_of(size));
    const auto logits = formula("logits " + name_of(size), {3, side, side}).to(torch::kFloat);
    const auto found = golden.processor.mask_logits(logits, size);
    REQUIRE(found.sizes() == torch::IntArrayRef({3, size.height, size.width}));
    const auto wide = found.to(torch::kDouble).flatten();
    const double norm = one["mask_logits"][0];
    CHECK(std::abs(wide.norm().item<double>() - norm) < 1e-5 * norm);
    CHECK(std::abs(wide.dot(formula("probe mask logits", {wide.numel()})).item<double>() -
                   one["mask_logits"][1].get<double>()) < 1e-5 * norm);
    CHECK(torch::allclose(golden.processor.mask_logits(logits[0], size), found[0]));
  }
}

TEST_CASE("points of several images are padded to as many as the most with -10", "[sam_processor]") {
  const auto a = torch::tensor({{1.0, 2.0}}), b = torch::tensor({{3.0, 4.0}, {5.0, 6.0}, {7.0, 8.0}});
  const auto none = torch::zeros({0, 2});
  const auto ones = [](std::int64_t count) { return torch::ones({count}, torch::kInt64); };
  const auto padded = sam::pad_points({a, b, none}, {ones(1), ones(3), ones(0)});
  REQUIRE(padded.points.sizes() == torch::IntArrayRef({3, 1, 3, 2}));
  CHECK(padded.points[0][0].equal(
      torch::tensor({1.0, 2.0, -10.0, -10.0, -10.0, -10.0}, torch::kDouble).view({3, 2})));
  CHECK(padded.points[1][0].equal(b.to(torch::kDouble)));
  CHECK((padded.points[2] == -10).all().item<bool>());
  CHECK(padded.labels.equal(
      torch::tensor({1, -10, -10, 1, 1, 1, -10, -10, -10}, torch::kInt64).view({3, 1, 3})));
  CHECK(sam::pad_points({none, none}, {ones(0), ones(0)})
            .labels.equal(torch::full({2, 1, 1}, -10, torch::kInt64)));
  CHECK_THROWS_WITH(sam::pad_points({a}, {ones(2)}),
                    ContainsSubstring("expected 1 labels of image 0, got 2"));
  CHECK_THROWS_WITH(sam::pad_points({a}, {}), ContainsSubstring("expected labels of 1 images, got 0"));
}

TEST_CASE("sizes that no image has are refused", "[sam_processor]") {
  CHECK_THROWS_AS(SamProcessor({.image_size = 0}), std::invalid_argument);
  CHECK_THROWS_AS(SamProcessor({.std = {1, 0, 1}}), std::invalid_argument);
  CHECK_THROWS_WITH(SamProcessor().resized({0, 5}), ContainsSubstring("at least 1 x 1, got 5 x 0"));
  CHECK(SamProcessor({.image_size = 16}).resized({1, 1000}) == ImageSize{1, 16});
}
