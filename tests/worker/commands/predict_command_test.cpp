#include <ddprun/data/dataset_files.h>
#include <ddprun/image/image.h>
#include "tests/support/catch.h"
#include "worker/commands/commands.h"

namespace ddprun::worker {
namespace {

const PictureInput kGrey{.side = 28, .scale = {{data::kMnistMean}, {data::kMnistStd}}, .dark_ground = true};
const PictureInput kColour{.side = 32, .scale = {{.5f, .5f, .5f}, {.5f, .5f, .5f}}};

/// The input's pixels, 0 to 255.
torch::Tensor pixels_of(const torch::Tensor& input_CHW, const PixelScale& scale) {
  const auto of = [](const std::vector<float>& values) { return torch::tensor(values).view({-1, 1, 1}); };
  return (input_CHW * of(scale.std) + of(scale.mean)).mul(255).round();
}

TEST_CASE("a picture of the data set's form is taken as it is", "[predict_command]") {
  auto picture = image::make_image(28, 28, 1, 250);  // a light edge too
  *picture.pixel(3, 5) = 7;
  const auto [input, how] = adapt_picture(picture, kGrey);
  CHECK(how.empty());
  CHECK(input.sizes() == at::IntArrayRef({1, 28, 28}));
  CHECK(input[0][5][3].item<float>() == (7.f / 255.f - data::kMnistMean) / data::kMnistStd);
  CHECK(pixels_of(input, kGrey.scale)[0][0][0].item<float>() == 250);
}

TEST_CASE("a dark digit on a wide white page becomes a light one on a black square", "[predict_command]") {
  auto page = image::make_image(112, 56, 3, 255);
  for (int y = 20; y < 36; ++y)
    for (int x = 48; x < 64; ++x) std::fill_n(page.pixel(x, y), 3, 0);
  const auto [input, how] = adapt_picture(page, kGrey);
  CHECK(how == "28x28 from 112x56, to grey, inverted, as its edge is light, padded to a square");
  const auto pixels = pixels_of(input, kGrey.scale)[0];
  CHECK(pixels[14][14].item<float>() == 255);
  CHECK(pixels[0][0].item<float>() == 0);   // padding
  CHECK(pixels[14][2].item<float>() == 0);  // the page
}

TEST_CASE("grey is Pillow's, and a colour picture is cut to its middle", "[predict_command]") {
  auto red = image::make_image(28, 28, 3);
  for (int i = 0; i < 28 * 28; ++i) red.bytes[static_cast<std::size_t>(3 * i)] = 200;
  CHECK(pixels_of(adapt_picture(red, kGrey).input_CHW, kGrey.scale)[0][9][9].item<float>() ==
        60);  // 0.299 x 200

  auto wide = image::make_image(96, 32, 3);
  for (int y = 0; y < 32; ++y)
    for (int x = 32; x < 64; ++x) wide.pixel(x, y)[2] = 90;
  const auto [input, how] = adapt_picture(wide, kColour);
  CHECK(how == "32x32 from 96x32, cropped to its central square");
  const auto pixels = pixels_of(input, kColour.scale);
  CHECK((pixels[2] == 90).all().item<bool>());
  CHECK((pixels[0] == 0).all().item<bool>());
  CHECK(adapt_picture(image::make_image(32, 32, 1), kColour).how == "to RGB");
}

}  // namespace
}  // namespace ddprun::worker
