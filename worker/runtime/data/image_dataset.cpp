#include <ddprun/data/image_dataset.h>

#include <stdexcept>

namespace ddprun::data {

ImageDataset::ImageDataset(Images images, ImageTransform transform)
    : images_(std::move(images)), transform_(std::move(transform)) {
  const auto& pixels = images_.images_NCHW;
  const auto& labels = images_.labels_N;
  if (pixels.dim() != 4 || pixels.scalar_type() != torch::kUInt8 ||
      (pixels.size(0) > 0 && !pixels[0].is_contiguous()))
    throw std::invalid_argument("ImageDataset: expected images as uint8 [N, C, H, W], each contiguous");
  if (labels.dim() != 1 || labels.scalar_type() != torch::kInt64 || labels.size(0) != pixels.size(0) ||
      !labels.is_contiguous())
    throw std::invalid_argument("ImageDataset: expected labels as int64 [N], one an image");
  if (pixels.size(1) != transform_.channels())
    throw std::invalid_argument("ImageDataset: expected a mean for each of " +
                                std::to_string(pixels.size(1)) + " channels, got " +
                                std::to_string(transform_.channels()));
}

template <typename Augment>
Batch ImageDataset::make_batch(const std::vector<std::int64_t>& indices, Augment augment) const {
  const auto& pixels = images_.images_NCHW;
  const auto height = pixels.size(2), width = pixels.size(3), image_size = pixels.size(1) * height * width;
  const auto size = static_cast<std::int64_t>(indices.size());
  const auto format =
      transform_.channels_last() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  Batch batch{torch::empty({size, pixels.size(1), height, width},
                           torch::TensorOptions(torch::kFloat32).memory_format(format)),
              torch::empty({size}, torch::kInt64)};
  const auto* image = pixels.const_data_ptr<std::uint8_t>();
  const auto* label = images_.labels_N.const_data_ptr<std::int64_t>();
  auto* input = batch.input.mutable_data_ptr<float>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  for (const auto index : indices) {
    transform_.apply(image + index * pixels.stride(0), height, width, augment(index), input);
    input += image_size;
    *target++ = label[index];
  }
  return batch;
}

Batch ImageDataset::get_batch(const std::vector<std::int64_t>& indices) const {
  return make_batch(indices, [this](std::int64_t) { return transform_.none(); });
}

Batch ImageDataset::get_epoch_batch(const std::vector<std::int64_t>& indices, std::int64_t epoch) const {
  return make_batch(indices, [this, epoch](std::int64_t index) { return transform_.draw(epoch, index); });
}

}  // namespace ddprun::data
