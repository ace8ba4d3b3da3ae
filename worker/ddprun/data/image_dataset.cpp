#include <ddprun/data/image_dataset.h>

#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <ATen/ops/_upsample_bilinear2d_aa.h>

#include <ddprun/common/text.h>
#include <ddprun/data/dataset.h>

namespace ddprun::data {
namespace {

constexpr int kMaxPadding = 1000;
constexpr int kBlocksOfAnEpoch = 256;  // of 4 numbers each; more than needed today

/// One row of one channel of a window, `Step` floats apart (0: `step`).
///
/// width   of the image; its pixels begin at `row`
/// shift   the image's column where the window begins
/// window  the window's width
template <int Step>
void write_row(const std::uint8_t* row, std::int64_t width, std::int64_t shift, std::int64_t window,
               bool flip, const std::array<float, 256>& table, float* out, std::int64_t step) {
  const auto distance = Step != 0 ? Step : step;
  // The part of the window's row that is inside the image; the rest is padding.
  const auto begin = std::clamp<std::int64_t>(-shift, 0, window);
  const auto end = std::clamp<std::int64_t>(width - shift, begin, window);
  for (std::int64_t x = 0; x < begin; ++x) out[x * distance] = table[0];
  const auto last = width - 1 - shift;
  if (flip)
    for (auto x = begin; x < end; ++x) out[x * distance] = table[row[last - x]];
  else
    for (auto x = begin; x < end; ++x) out[x * distance] = table[row[x + shift]];
  for (auto x = end; x < window; ++x) out[x * distance] = table[0];
}

void check(const ImageTransform::Options& options) {
  if (options.mean.empty() || options.mean.size() != options.std.size())
    throw std::invalid_argument("ImageTransform: expected a mean and a standard deviation for each channel");
  if (!std::ranges::all_of(options.std, [](float std) { return std > 0; }))
    throw std::invalid_argument("ImageTransform: expected standard deviations above 0");
  if (options.padding < 0 || options.padding > kMaxPadding)
    throw std::invalid_argument("ImageTransform: expected 0 <= padding <= 1000");
  if (options.crop < 0) throw std::invalid_argument("ImageTransform: expected a crop from 0");
}

}  // namespace

ImageTransform::ImageTransform(Options options) : options_(std::move(options)) {
  check(options_);
  tables_.resize(options_.mean.size());
  // The arithmetic of ToTensor and Normalize in their order and precision, so results match bit for bit.
  for (std::size_t c = 0; c < tables_.size(); ++c)
    for (std::size_t pixel = 0; pixel < 256; ++pixel)
      tables_[c][pixel] = (static_cast<float>(pixel) / 255.f - options_.mean[c]) / options_.std[c];
}

Augmentation ImageTransform::draw(std::int64_t epoch, std::int64_t index, std::int64_t height,
                                  std::int64_t width) const {
  at::Philox4_32 random(options_.seed, static_cast<std::uint64_t>(index),
                        static_cast<std::uint64_t>(epoch) * kBlocksOfAnEpoch);
  const auto flip = random(), top = random(), left = random();
  const auto place = [&](std::int64_t size, std::uint32_t number) {
    return uniform_below(static_cast<int>(size + 2 * options_.padding - side(size, true) + 1), number);
  };
  return {options_.flip && flip >> 31 != 0, place(height, top), place(width, left)};
}

void ImageTransform::apply(const std::uint8_t* image_CHW, std::int64_t height, std::int64_t width,
                           const Augmentation* augmentation, float* out) const {
  const bool augmented = augmentation != nullptr, flip = augmented && augmentation->flip;
  const auto down = augmented ? augmentation->top - options_.padding : 0;
  const auto right = augmented ? augmentation->left - options_.padding : 0;
  const auto rows = side(height, augmented), columns = side(width, augmented);
  const auto step = options_.channels_last ? channels() : 1;
  for (std::int64_t c = 0; c < channels(); ++c) {
    const auto& table = tables_[static_cast<std::size_t>(c)];
    const auto* plane = image_CHW + c * height * width;
    float* to = options_.channels_last ? out + c : out + c * rows * columns;
    for (std::int64_t y = 0; y < rows; ++y, to += columns * step) {
      const auto from = y + down;
      if (from < 0 || from >= height)
        for (std::int64_t x = 0; x < columns; ++x) to[x * step] = table[0];
      else if (step == 1)
        write_row<1>(plane + from * width, width, right, columns, flip, table, to, 1);
      else
        write_row<0>(plane + from * width, width, right, columns, flip, table, to, step);
    }
  }
}

void ImageTransform::check_crop(std::int64_t height, std::int64_t width) const {
  const auto most = std::min(height, width) + 2 * options_.padding;
  if (options_.crop > most)
    throw std::invalid_argument(
        c10::str("ImageTransform: expected crops of at most ", most, " pixels, got ", options_.crop));
}

torch::Tensor ImageTransform::scale() const {
  std::vector<float> values(options_.mean.size(), 255.f);
  values.insert(values.end(), options_.mean.begin(), options_.mean.end());
  values.insert(values.end(), options_.std.begin(), options_.std.end());
  return torch::tensor(values).view({3, -1, 1, 1});
}

torch::Tensor ImageTransform::apply(const torch::Tensor& images_BCHW, const torch::Tensor& scale_3C11,
                                    const torch::Tensor& drawn_B3) const {
  const auto batch = images_BCHW.size(0), height = images_BCHW.size(2), width = images_BCHW.size(3);
  auto pixels = images_BCHW;
  if (drawn_B3.defined()) {
    const auto rows = side(height, true), columns = side(width, true);
    const auto range = [&](std::int64_t size) { return torch::arange(size, drawn_B3.options()); };
    const auto y_BH1 = (range(rows) + (drawn_B3.narrow(1, 1, 1) - options_.padding)).unsqueeze(2);
    const auto x_B1W = (range(columns) + (drawn_B3.narrow(1, 2, 1) - options_.padding)).unsqueeze(1);
    const auto in_image = (y_BH1 >= 0) & (y_BH1 < height) & (x_B1W >= 0) & (x_B1W < width);
    const auto flip_B11 = drawn_B3.narrow(1, 0, 1).unsqueeze(2);
    const auto place = y_BH1 * width + torch::where(flip_B11 != 0, width - 1 - x_B1W, x_B1W);
    const auto from = torch::where(in_image, place, 0).view({batch, 1, rows * columns});
    pixels = pixels.flatten(2)
                 .gather(2, from.expand({-1, channels(), -1}))
                 .view({batch, channels(), rows, columns});
    pixels = torch::where(in_image.unsqueeze(1), pixels, 0);
  }
  return (pixels.to(torch::kFloat32) / scale_3C11[0] - scale_3C11[1]) / scale_3C11[2];
}

ImageDataset::ImageDataset(Images images, ImageTransform transform)
    : images_(std::move(images)), transform_(std::move(transform)) {
  const auto& pixels = images_.images_NCHW;
  const auto& labels = images_.labels_N;
  if (pixels.dim() != 4 || pixels.scalar_type() != torch::kUInt8 ||
      (pixels.size(0) > 0 && !pixels[0].is_contiguous()))
    throw std::invalid_argument("ImageDataset: expected images as uint8 [N, C, H, W], each contiguous");
  if (labels.dim() != 1 || labels.scalar_type() != torch::kInt64 || labels.size(0) != pixels.size(0) ||
      !labels.is_contiguous())
    throw std::invalid_argument("ImageDataset: expected labels as int64 [N], one per image");
  if (pixels.size(1) != transform_.channels())
    throw std::invalid_argument(c10::str("ImageDataset: expected a mean for each of ", pixels.size(1),
                                         " channels, got ", transform_.channels()));
  transform_.check_crop(pixels.size(2), pixels.size(3));
}

Batch ImageDataset::make_batch(const std::vector<std::int64_t>& indices,
                               std::optional<std::int64_t> epoch) const {
  const auto& pixels = images_.images_NCHW;
  const auto height = pixels.size(2), width = pixels.size(3);
  const auto rows = transform_.side(height, epoch.has_value()),
             columns = transform_.side(width, epoch.has_value());
  const auto size = static_cast<std::int64_t>(indices.size());
  const auto format =
      transform_.channels_last() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Batch batch{torch::empty({size, pixels.size(1), rows, columns},
                           torch::TensorOptions(torch::kFloat32).memory_format(format)),
              torch::empty({size}, torch::kInt64)};
  const auto* image = pixels.const_data_ptr<std::uint8_t>();
  const auto* label = images_.labels_N.const_data_ptr<std::int64_t>();
  auto* input = batch.input.mutable_data_ptr<float>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  for (const auto index : indices) {
    const auto drawn = epoch ? transform_.draw(*epoch, index, height, width) : Augmentation();
    transform_.apply(image + index * pixels.stride(0), height, width, epoch ? &drawn : nullptr, input);
    input += pixels.size(1) * rows * columns;
    *target++ = label[index];
  }
  return batch;
}

Batch ImageDataset::get_batch(const std::vector<std::int64_t>& indices) const {
  return make_batch(indices, std::nullopt);
}

Batch ImageDataset::get_raw_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const {
  const auto index_B = torch::tensor(indices, torch::kInt64);
  Batch batch{images_.images_NCHW.index_select(0, index_B),
              images_.labels_N.index_select(0, index_B),
              {transform_.scale()}};
  if (!transform_.augments()) return batch;
  auto drawn_B3 = torch::empty({static_cast<std::int64_t>(indices.size()), 3}, torch::kInt64);
  auto* out = drawn_B3.mutable_data_ptr<std::int64_t>();
  for (const auto index : indices) {
    const auto drawn =
        transform_.draw(epoch, index, images_.images_NCHW.size(2), images_.images_NCHW.size(3));
    for (const std::int64_t number : {drawn.flip ? 1 : 0, drawn.top, drawn.left}) *out++ = number;
  }
  batch.extra.push_back(drawn_B3);
  return batch;
}

Batch ImageDataset::prepare(Batch raw) const {
  const torch::NoGradGuard no_grad;
  raw.input =
      transform_.apply(raw.input, raw.extra[0], raw.extra.size() > 1 ? raw.extra[1] : torch::Tensor());
  if (transform_.channels_last()) raw.input = raw.input.contiguous(at::MemoryFormat::ChannelsLast);
  raw.extra.clear();
  return raw;
}

Batch ImageDataset::get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const {
  return make_batch(indices, epoch);
}

std::optional<std::vector<ImageSize>> parse_image_sizes(const std::string& text) {
  std::vector<ImageSize> sizes;
  double left = 1;
  for (const auto& part : split(text, ',')) {
    const auto colon = part.find(':');
    const auto side = parse_integer(part.substr(0, colon), std::int64_t{1}, std::int64_t{4096});
    const auto share =
        colon == std::string::npos ? std::optional(left) : parse_number(part.substr(colon + 1));
    if (!side || !share || !(*share > 0)) return std::nullopt;
    sizes.push_back({*side, *share});
    left -= *share;
  }
  constexpr double kRounding = 1e-9;
  return std::abs(left) < kRounding ? std::optional(sizes) : std::nullopt;
}

namespace {

torch::Tensor resized(const torch::Tensor& images_BCHW, std::int64_t side) {
  if (images_BCHW.size(2) == side && images_BCHW.size(3) == side) return images_BCHW;
  return at::_upsample_bilinear2d_aa(images_BCHW, {side, side}, /*align_corners=*/false)
      .contiguous(images_BCHW.suggest_memory_format());
}

}  // namespace

ProgressiveResizing::ProgressiveResizing(std::shared_ptr<const Dataset> images, std::vector<ImageSize> sizes,
                                         std::int64_t epochs)
    : images_(std::move(images)), sizes_(std::move(sizes)), epochs_(epochs) {
  if (sizes_.empty()) throw std::invalid_argument("ProgressiveResizing: expected a size");
}

std::int64_t ProgressiveResizing::side(std::int64_t epoch) const {
  double share = 0;
  for (const auto& size : sizes_)
    if (epoch < std::llround((share += size.share) * static_cast<double>(epochs_))) return size.side;
  return sizes_.back().side;
}

Batch ProgressiveResizing::get_batch(const std::vector<std::int64_t>& indices) const {
  return images_->get_batch(indices);
}

Batch ProgressiveResizing::get_epoch_batch(const std::vector<std::int64_t>& indices,
                                           std::int64_t epoch) const {
  auto batch = images_->get_epoch_batch(indices, epoch);
  batch.input = resized(batch.input, side(epoch));
  return batch;
}

Batch ProgressiveResizing::get_raw_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const {
  auto raw = images_->get_raw_batch(indices, epoch);
  raw.extra.push_back(torch::empty({0, side(epoch)}));  // a shape needs no copy from the device
  return raw;
}

Batch ProgressiveResizing::prepare(Batch raw) const {
  const torch::NoGradGuard no_grad;
  const auto side = raw.extra.back().size(1);
  raw.extra.pop_back();
  auto batch = images_->prepare(std::move(raw));
  batch.input = resized(batch.input, side);
  return batch;
}

}  // namespace ddprun::data
