#include <ddprun/data/image_transform.h>

#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <stdexcept>

#include <ddprun/data/below.h>

namespace ddprun::data {
namespace {

constexpr int kMaxPadding = 1000;
constexpr int kBlocksOfAnEpoch = 256;  // Philox gives 4 numbers a block: room for augmentations to come

/// Where in a row of `width` pixels the window holds pixels of the image; outside it is padding.
struct Columns {
  std::int64_t begin, end;
};

Columns columns_within(std::int64_t width, std::int64_t shift) {
  const auto begin = std::clamp<std::int64_t>(-shift, 0, width);
  return {begin, std::clamp<std::int64_t>(width - shift, begin, width)};
}

/// One row of one channel, `Step` floats apart (0: `step`).
template <int Step>
void write_row(const std::uint8_t* row, std::int64_t width, std::int64_t shift, bool flip,
               const std::array<float, 256>& table, float* out, std::int64_t step) {
  const auto distance = Step != 0 ? Step : step;
  const auto [begin, end] = columns_within(width, shift);
  for (std::int64_t x = 0; x < begin; ++x) out[x * distance] = table[0];
  const auto last = width - 1 - shift;
  if (flip)
    for (auto x = begin; x < end; ++x) out[x * distance] = table[row[last - x]];
  else
    for (auto x = begin; x < end; ++x) out[x * distance] = table[row[x + shift]];
  for (auto x = end; x < width; ++x) out[x * distance] = table[0];
}

void check(const ImageTransform::Options& options) {
  if (options.mean.empty() || options.mean.size() != options.std.size())
    throw std::invalid_argument("ImageTransform: expected a mean and a standard deviation for each channel");
  if (!std::all_of(options.std.begin(), options.std.end(), [](float std) { return std > 0; }))
    throw std::invalid_argument("ImageTransform: expected standard deviations above 0");
  if (options.padding < 0 || options.padding > kMaxPadding)
    throw std::invalid_argument("ImageTransform: expected 0 <= padding <= 1000");
}

}  // namespace

ImageTransform::ImageTransform(Options options) : options_(std::move(options)) {
  check(options_);
  tables_.resize(options_.mean.size());
  // The arithmetic of ToTensor and Normalize, in their order and precision: equal to the last bit.
  for (std::size_t c = 0; c < tables_.size(); ++c)
    for (std::size_t pixel = 0; pixel < 256; ++pixel)
      tables_[c][pixel] = (static_cast<float>(pixel) / 255.f - options_.mean[c]) / options_.std[c];
}

Augmentation ImageTransform::draw(std::int64_t epoch, std::int64_t index) const {
  at::Philox4_32 random(options_.seed, static_cast<std::uint64_t>(index),
                        static_cast<std::uint64_t>(epoch) * kBlocksOfAnEpoch);
  const auto flip = random(), top = random(), left = random();
  const int windows = 2 * options_.padding + 1;
  return {options_.flip && flip >> 31 != 0, below(windows, top), below(windows, left)};
}

void ImageTransform::apply(const std::uint8_t* image_CHW, std::int64_t height, std::int64_t width,
                           const Augmentation& augmentation, float* out) const {
  const auto down = augmentation.top - options_.padding, right = augmentation.left - options_.padding;
  const auto step = options_.channels_last ? channels() : 1;
  for (std::int64_t c = 0; c < channels(); ++c) {
    const auto& table = tables_[static_cast<std::size_t>(c)];
    const auto* plane = image_CHW + c * height * width;
    float* to = options_.channels_last ? out + c : out + c * height * width;
    for (std::int64_t y = 0; y < height; ++y, to += width * step) {
      const auto from = y + down;
      if (from < 0 || from >= height)
        for (std::int64_t x = 0; x < width; ++x) to[x * step] = table[0];
      else if (step == 1)
        write_row<1>(plane + from * width, width, right, augmentation.flip, table, to, 1);
      else
        write_row<0>(plane + from * width, width, right, augmentation.flip, table, to, step);
    }
  }
}

}  // namespace ddprun::data
