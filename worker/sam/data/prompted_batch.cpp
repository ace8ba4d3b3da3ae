#include "worker/sam/data/prompted_batch.h"

#include <torch/types.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/image/image_files.h>
#include "worker/sam/model/sam_config.h"

namespace ddprun::sam {
namespace {

/// Scales the longest side to `longest`.
ImageSize with_longest_side(ImageSize size, std::int64_t longest) {
  const double scale = static_cast<double>(longest) / static_cast<double>(std::max(size.height, size.width));
  const auto side = [&](std::int64_t old) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(old) * scale + 0.5));
  };
  return {side(size.height), side(size.width)};
}

void check_size(ImageSize size) {
  if (size.height < 1 || size.width < 1)
    throw std::invalid_argument(
        c10::str("SamProcessor: expected an image of at least 1 x 1, got ", size.width, " x ", size.height));
}

/// The nearest neighbour among `old` places for each of `count`, in single precision like ATen.
at::Tensor nearest(std::int64_t old, std::int64_t count) {
  const float scale = static_cast<float>(old) / static_cast<float>(count);
  auto index = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i)
    index.mutable_data_ptr<std::int64_t>()[i] =
        std::min(static_cast<std::int64_t>((static_cast<float>(i) + 0.5F) * scale), old - 1);
  return index;
}

at::Tensor scaled(const at::Tensor& xy, ImageSize original, ImageSize resized) {
  auto result = xy.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  result.select(-1, 0).mul_(static_cast<double>(resized.width) / static_cast<double>(original.width));
  result.select(-1, 1).mul_(static_cast<double>(resized.height) / static_cast<double>(original.height));
  return result;
}

ImageSize size_of(const image::Image& picture) { return {picture.height, picture.width}; }

/// A tensor that shares the picture's memory and keeps it alive.
at::Tensor as_tensor(const std::shared_ptr<const image::Image>& picture) {
  auto* bytes = const_cast<std::uint8_t*>(picture->bytes.data());  // tensors cannot be read-only
  return torch::from_blob(
      bytes, {picture->height, picture->width, 3}, [picture](void*) {}, torch::kUInt8);
}

at::Tensor coordinates_of(const std::vector<PromptPoint>& prompt, ImageSize size,
                          const SamProcessor& processor) {
  const auto count = static_cast<std::int64_t>(prompt.size());
  auto points = torch::empty({count, 2}, torch::kDouble);
  auto* out = points.mutable_data_ptr<double>();
  for (const auto& point : prompt) {
    *out++ = point.x;
    *out++ = point.y;
  }
  return processor.points(points, size);
}

at::Tensor labels_of(const std::vector<PromptPoint>& prompt) {
  std::vector<std::int64_t> labels;
  for (const auto& point : prompt) labels.push_back(point.foreground ? 1 : 0);
  return torch::tensor(labels, torch::kInt64);
}

at::Tensor sizes(const std::vector<ImageSize>& sizes) {
  std::vector<std::int64_t> values;
  for (const auto& size : sizes) values.insert(values.end(), {size.height, size.width});
  return torch::tensor(values, torch::kInt64).view({-1, 2});
}

/// uint8 [H, W] or [H, W, channels].
image::Image as_image(const at::Tensor& pixels) {
  const auto bytes = pixels.cpu().contiguous();
  auto picture = image::make_image(static_cast<int>(bytes.size(1)), static_cast<int>(bytes.size(0)),
                                   bytes.dim() == 2 ? 1 : static_cast<int>(bytes.size(2)));
  std::copy_n(bytes.const_data_ptr<std::uint8_t>(), picture.bytes.size(), picture.bytes.begin());
  return picture;
}

/// 0 and 255.
at::Tensor as_mask(const at::Tensor& mask) { return mask.ne(0).to(torch::kUInt8).mul_(255); }

}  // namespace

SamProcessor::SamProcessor(const Options& options) : options_(options) {
  if (options.image_size < 1 || options.mask_size < 1)
    throw std::invalid_argument(c10::str("SamProcessor: expected an image_size and a mask_size above 0, got ",
                                         options.image_size, " and ", options.mask_size));
  for (const double deviation : options.std)
    if (!(deviation > 0))
      throw std::invalid_argument("SamProcessor: expected standard deviations above 0, got " +
                                  std::to_string(deviation));
}

ImageSize SamProcessor::resized(ImageSize original) const {
  check_size(original);
  return with_longest_side(original, options_.image_size);
}

at::Tensor SamProcessor::pixel_values(const image::Image& picture) const {
  const auto size = resized({picture.height, picture.width});
  const auto sizes = at::tensor({size.height, size.width}, at::kLong).unsqueeze(0);
  return normalised(pixels(picture).unsqueeze(0), sizes, colours())[0];
}

at::Tensor SamProcessor::pixels(const image::Image& picture) const {
  auto rgb = image::to_rgb(picture);
  const auto size = resized({rgb.height, rgb.width});
  const auto bytes =
      at::from_blob(rgb.bytes.data(), {1, rgb.height, rgb.width, 3}, at::kByte).permute({0, 3, 1, 2});
  const auto small = at::_upsample_bilinear2d_aa(bytes, {size.height, size.width}, /*align_corners=*/false);
  const auto side = options_.image_size;
  auto result = at::zeros({3, side, side}, at::kByte);
  result.narrow(1, 0, size.height).narrow(2, 0, size.width).copy_(small[0]);
  return result;
}

at::Tensor SamProcessor::normalised(const at::Tensor& pixels, const at::Tensor& sizes,
                                    const at::Tensor& colours) const {
  const auto place = at::arange(options_.image_size, sizes.options());
  const auto in_padding = [&](std::int64_t side) {
    return place >= sizes.select(1, side).unsqueeze(1);
  };  // [B, S]
  return pixels.to(at::kFloat)
      .sub_(colours[0])
      .div_(colours[1])
      .masked_fill_((in_padding(0).unsqueeze(2) | in_padding(1).unsqueeze(1)).unsqueeze(1), 0);
}

at::Tensor SamProcessor::colours() const {
  auto bytes = at::empty({2, 3, 1, 1});
  std::ranges::copy(options_.mean, bytes.mutable_data_ptr<float>());
  std::ranges::copy(options_.std, bytes.mutable_data_ptr<float>() + 3);
  return bytes.mul_(255);
}

at::Tensor SamProcessor::points(const at::Tensor& points, ImageSize original) const {
  return scaled(points, original, resized(original));
}

at::Tensor SamProcessor::boxes(const at::Tensor& boxes, ImageSize original) const {
  return scaled(boxes.unflatten(-1, {2, 2}), original, resized(original)).flatten(-2);
}

at::Tensor SamProcessor::low_resolution_mask(const at::Tensor& mask, std::int64_t side) const {
  const ImageSize original{mask.size(0), mask.size(1)};
  check_size(original);
  const auto size = with_longest_side(original, side);
  auto result = at::zeros({side, side}, mask.options());
  result.narrow(0, 0, size.height)
      .narrow(1, 0, size.width)
      .copy_(mask.index_select(0, nearest(original.height, size.height))
                 .index_select(1, nearest(original.width, size.width)));
  return result;
}

at::Tensor SamProcessor::mask_logits(const at::Tensor& logits, ImageSize original) const {
  const auto size = resized(original);
  const auto side = options_.image_size;
  const auto masks = logits.reshape({1, -1, logits.size(-2), logits.size(-1)});
  const auto framed = at::upsample_bilinear2d(masks, {side, side}, /*align_corners=*/false)
                          .narrow(2, 0, size.height)
                          .narrow(3, 0, size.width);
  auto shape = logits.sizes().vec();
  shape[shape.size() - 2] = original.height;
  shape[shape.size() - 1] = original.width;
  return at::upsample_bilinear2d(framed, {original.height, original.width}, /*align_corners=*/false)
      .reshape(shape);
}

PaddedPoints pad_points(const std::vector<at::Tensor>& points, const std::vector<at::Tensor>& labels) {
  if (points.size() != labels.size())
    throw std::invalid_argument(
        c10::str("pad_points: expected labels of ", points.size(), " images, got ", labels.size()));
  std::int64_t most = 1;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].size(0) != labels[i].size(0))
      throw std::invalid_argument(c10::str("pad_points: expected ", points[i].size(0), " labels of image ", i,
                                           ", got ", labels[i].size(0)));
    most = std::max(most, points[i].size(0));
  }
  const auto images = static_cast<std::int64_t>(points.size());
  PaddedPoints result{at::full({images, 1, most, 2}, kPaddingPoint, at::kDouble),
                      at::full({images, 1, most}, kPaddingPoint, at::kLong)};
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto image = static_cast<std::int64_t>(i), count = points[i].size(0);
    result.points[image][0].narrow(0, 0, count).copy_(points[i].view({-1, 2}));
    result.labels[image][0].narrow(0, 0, count).copy_(labels[i]);
  }
  return result;
}

data::Batch make_prompted_batch(const std::vector<PromptedPicture>& pictures, const SamProcessor& processor) {
  return prepare_prompted_batch(make_raw_batch(pictures, processor), processor);
}

data::Batch make_raw_batch(const std::vector<PromptedPicture>& pictures, const SamProcessor& processor) {
  const auto side = processor.options().mask_size;
  std::vector<at::Tensor> inputs, targets, points, labels, truths;
  std::vector<ImageSize> originals, resized;
  for (const auto& picture : pictures) {
    const auto size = size_of(*picture.picture);
    const auto truth =
        picture.truth.defined() ? picture.truth : torch::zeros({size.height, size.width}, torch::kUInt8);
    inputs.push_back(processor.pixels(*picture.picture));
    std::vector<at::Tensor> masks;
    const auto add_prompt = [&](const std::vector<PromptPoint>& prompt, const at::Tensor& mask) {
      masks.push_back(mask);
      targets.push_back(processor.low_resolution_mask(mask, side));
      points.push_back(coordinates_of(prompt, size, processor));
      labels.push_back(labels_of(prompt));
    };
    add_prompt(picture.points, truth);
    for (const auto& [prompt, mask] : picture.more) add_prompt(prompt, mask);
    originals.push_back(size);
    resized.push_back(processor.resized(size));
    truths.push_back(torch::stack(masks));
  }
  const auto prompts = pad_points(points, labels);
  const auto images = static_cast<std::int64_t>(pictures.size());
  const auto by_image = [&](const at::Tensor& all) { return all.unflatten(0, {images, -1}); };
  data::Batch batch{torch::stack(inputs),
                    by_image(torch::stack(targets)),
                    {by_image(prompts.points.squeeze(1).to(torch::kFloat)),
                     by_image(prompts.labels.squeeze(1)), sizes(originals), sizes(resized)}};
  batch.extra.insert(batch.extra.end(), truths.begin(), truths.end());
  batch.extra.push_back(processor.colours());
  for (const auto& picture : pictures) batch.shown.push_back(as_tensor(picture.picture));
  return batch;
}

data::Batch prepare_prompted_batch(data::Batch raw, const SamProcessor& processor) {
  raw.input = processor.normalised(raw.input, resized_sizes_of(raw), raw.extra.back());
  raw.target = raw.target.to(torch::kFloat);
  raw.extra.pop_back();
  return raw;
}

PredictionRow prediction_row(const data::Batch& batch, std::int64_t i, const at::Tensor& predicted) {
  PredictionRow row{as_image(picture_of(batch, i)),
                    {},
                    as_image(as_mask(truth_of(batch, i))),
                    as_image(as_mask(predicted))};
  const auto labels = point_labels_of(batch)[i][0].cpu();
  const auto original = original_sizes_of(batch)[i].cpu(), resized = resized_sizes_of(batch)[i].cpu();
  const auto scale = (original.to(torch::kDouble) / resized).flip(0);  // of x, of y
  const auto points = points_of(batch)[i][0].cpu() * scale;
  for (std::int64_t n = 0; n < labels.size(0); ++n)
    if (const auto label = labels[n].item<std::int64_t>(); label == 0 || label == 1)
      row.points.push_back({points[n][0].item<double>(), points[n][1].item<double>(), label == 1});
  return row;
}

PromptedPicture read_prompted_picture(const std::filesystem::path& path,
                                      const std::vector<std::string>& points) {
  if (points.empty())
    throw UsageError("--point: expected at least one point, X,Y, to predict a mask of " + path.string());
  PromptedPicture prompted;
  for (const auto& point : points) prompted.points.push_back(parse_point(point));
  prompted.picture =
      std::make_shared<const image::Image>(image::to_rgb(image::read_image(path, kMaxSegmentedPixels)));
  const auto& picture = *prompted.picture;
  for (const auto& point : prompted.points)
    if (point.x >= picture.width || point.y >= picture.height)
      throw UsageError(c10::str(point.origin, ": expected a point inside ", path.string(), ", which has ",
                                picture.width, " x ", picture.height, " pixels"));
  return prompted;
}

void write_mask(const std::filesystem::path& path, const at::Tensor& mask) {
  TORCH_CHECK(mask.dim() == 2, "a mask to write has two dimensions, got ", mask.sizes());
  image::write_png(path, as_image(as_mask(mask)));
}

}  // namespace ddprun::sam
