#include "worker/sam/data/prompted_batch.h"

#include <torch/types.h>

#include <ddprun/common/errors.h>
#include <ddprun/image/png.h>
#include <ddprun/image/read_image.h>
#include "worker/sam/data/segmentation_files.h"

namespace ddprun::sam {
namespace {

ImageSize size_of(const image::Image& picture) { return {picture.height, picture.width}; }

/// A tensor that shares the picture's memory and keeps it alive.
at::Tensor as_tensor(const std::shared_ptr<const image::Image>& picture) {
  auto* bytes = const_cast<std::uint8_t*>(picture->bytes.data());  // tensors cannot be read-only
  return torch::from_blob(
      bytes, {picture->height, picture->width, 3}, [picture](void*) {}, torch::kUInt8);
}

at::Tensor coordinates_of(const PromptedPicture& picture, const SamProcessor& processor) {
  const auto count = static_cast<std::int64_t>(picture.points.size());
  auto points = torch::empty({count, 2}, torch::kDouble);
  auto* out = points.mutable_data_ptr<double>();
  for (const auto& point : picture.points) {
    *out++ = point.x;
    *out++ = point.y;
  }
  return processor.points(points, size_of(*picture.picture));
}

at::Tensor labels_of(const PromptedPicture& picture) {
  std::vector<std::int64_t> labels;
  for (const auto& point : picture.points) labels.push_back(point.foreground ? 1 : 0);
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
    targets.push_back(processor.low_resolution_mask(truth, side).unsqueeze(0));
    points.push_back(coordinates_of(picture, processor));
    labels.push_back(labels_of(picture));
    originals.push_back(size);
    resized.push_back(processor.resized(size));
    truths.push_back(truth);
  }
  const auto prompts = pad_points(points, labels);
  data::Batch batch{torch::stack(inputs),
                    torch::stack(targets),
                    {prompts.points.to(torch::kFloat), prompts.labels, sizes(originals), sizes(resized)}};
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
    throw UsageError("--point: expected at least one, X,Y, to predict a mask of " + path.string());
  PromptedPicture prompted;
  for (const auto& point : points) prompted.points.push_back(parse_point(point));
  prompted.picture =
      std::make_shared<const image::Image>(image::to_rgb(image::read_image(path, kMaxSegmentedPixels)));
  const auto& picture = *prompted.picture;
  for (const auto& point : prompted.points)
    if (point.x >= picture.width || point.y >= picture.height)
      throw UsageError(point.origin + ": expected a point inside " + path.string() + ", which has " +
                       std::to_string(picture.width) + " x " + std::to_string(picture.height) + " pixels");
  return prompted;
}

void write_mask(const std::filesystem::path& path, const at::Tensor& mask) {
  TORCH_CHECK(mask.dim() == 2, "a mask to write has two dimensions, got ", mask.sizes());
  image::write_png(path, as_image(as_mask(mask)));
}

}  // namespace ddprun::sam
