// worker sam --predict: the mask of an object in a picture, or a page with the masks of all clicks.

#include <unistd.h>

#include <torch/types.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/settings/command.h>
#include <ddprun/common/text.h>
#include <ddprun/image/image_files.h>
#include <ddprun/report/html_report.h>
#include "worker/sam/data/prediction_rows.h"
#include "worker/sam/data/prompted_batch.h"
#include "worker/sam/sam_model.h"

namespace ddprun::sam {
namespace {

/// Called before reading the model, which takes a while. throws  IoError, also for the picture itself
void check_writable(const std::filesystem::path& file, const std::filesystem::path& picture) {
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw IoError(file, "cannot be written", errno);
  std::error_code missing;
  if (std::filesystem::equivalent(file, picture, missing))
    throw IoError(file, "is the picture itself, expected a different output file");
}

SamProcessor processor_of(const SamImpl& model) {
  return SamProcessor(
      {.image_size = model.config().vision.image_size, .mask_size = model.config().mask_size()});
}

/// The page's grid of clicks, and the pixels of each mask.
struct ClickGrid {
  int columns, rows, width, height;
};

ClickGrid grid_for(const image::Image& picture) {
  constexpr double kMostClicks = 32, kMostPixels = 128;  // of the longer side
  const double longest = std::max(picture.width, picture.height);
  const auto part = [longest](double most, int side) {
    return std::max(1, static_cast<int>(std::lround(most * side / longest)));
  };
  const double pixels = std::min(kMostPixels, longest);
  return {part(kMostClicks, picture.width), part(kMostClicks, picture.height), part(pixels, picture.width),
          part(pixels, picture.height)};
}

/// The masks of the grid's clicks, each in the middle of its cell, side by side in one grey picture.
image::Image masks_of_clicks(Sam& model, const image::Image& picture, const ClickGrid& grid) {
  const torch::NoGradGuard no_grad;
  const auto processor = processor_of(*model);
  const auto embedding = model->image_embeddings(processor.pixel_values(picture).unsqueeze(0));
  const ImageSize size{grid.height, grid.width};
  auto all = image::make_image(grid.columns * grid.width, grid.rows * grid.height, 1);
  for (int row = 0; row < grid.rows; ++row) {
    std::vector<double> clicks;
    for (int column = 0; column < grid.columns; ++column) {
      clicks.push_back((column + 0.5) * picture.width / grid.columns - 0.5);
      clicks.push_back((row + 0.5) * picture.height / grid.rows - 0.5);
    }
    const auto points = torch::tensor(clicks, torch::kDouble).view({1, grid.columns, 1, 2});
    const auto framed = processor.points(points, {picture.height, picture.width}).to(torch::kFloat);
    const auto output = model->decode(embedding, {.points = framed}, /*multimask=*/false);
    const auto masks = (processor.mask_logits(output.masks[0].squeeze(1), size) > 0)
                           .to(torch::kUInt8)
                           .mul_(255)
                           .permute({1, 0, 2})
                           .contiguous();
    std::copy_n(masks.const_data_ptr<std::uint8_t>(), masks.numel(), all.pixel(0, row * grid.height));
  }
  return all;
}

constexpr std::string_view kPageStyle = R"(
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 16px/1.5 system-ui, sans-serif; color-scheme: light dark; }
h1 { margin: 0; font-size: 1.4rem; overflow-wrap: anywhere; }
#place { position: relative; width: min(100%, 85vh * var(--shape)); cursor: crosshair; }
#place > * { display: block; width: 100%; }
canvas { position: absolute; inset: 0; height: 100%; }
)";

constexpr std::string_view kPageScript = R"(
const place = document.getElementById("place"), [picture, masks] = document.images, said = document.getElementById("said");
const canvas = document.querySelector("canvas");
const [columns, rows, width, height] = ["columns", "rows", "width", "height"].map(name => Number(canvas.dataset[name]));
canvas.width = 4 * width;
canvas.height = 4 * height;
const context = canvas.getContext("2d"), tile = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d", { willReadFrequently: true });
const show = (x, y) => {  // from 0 to 1
  const column = Math.min(columns - 1, Math.floor(x * columns)), row = Math.min(rows - 1, Math.floor(y * rows));
  tile.drawImage(masks, column * width, row * height, width, height, 0, 0, width, height);
  const pixels = tile.getImageData(0, 0, width, height), { data } = pixels, inside = [];
  for (let i = 0; i < data.length; i += 4) inside.push(data[i] > 127);
  const edge = i => [[-1, i % width > 0], [1, (i + 1) % width > 0], [-width, true], [width, true]].some(([step, beside]) => beside && inside[i + step] === false);
  inside.forEach((is, i) => data.set([255, 145, 0, is ? (edge(i) ? 255 : 100) : 0], 4 * i));
  tile.putImageData(pixels, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.drawImage(tile.canvas, 0, 0, canvas.width, canvas.height);
  context.fillStyle = "#e61414";
  context.strokeStyle = "#fff";
  context.beginPath();
  context.arc(x * canvas.width, y * canvas.height, canvas.width / 90, 0, 7);
  context.fill();
  context.stroke();
  const share = 100 * inside.filter(is => is).length / inside.length;
  said.textContent = share > 0 ? `The mask covers ${share.toFixed(1)} % of the picture.` : "The mask of this point is empty.";
};
place.onclick = event => {
  const box = place.getBoundingClientRect();
  show((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
};
)";

/// Needs no server: the picture and all masks are in the page.
std::string click_page(const std::string& name, const image::Image& picture, const image::Image& masks,
                       const ClickGrid& grid) {
  constexpr int kMostPixels = 1024;
  const auto data = [](const image::Image& image) {
    return "src=\"data:image/png;base64," + report::base64(image::encode_png(image)) + "\">";
  };
  const auto title = report::html_text(name);
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n<title>" +
         title + "</title>\n<style>" + std::string(kPageStyle) + "</style>\n</head>\n<body>\n<h1>" + title +
         "</h1>\n<p id=\"said\">Click on an object: the page shows the mask of that point.</p>\n" +
         formatted("<div id=\"place\" style=\"--shape:%g\">",
                   static_cast<double>(picture.width) / picture.height) +
         "<img alt=\"the picture\" " + data(shown_picture(picture, kMostPixels)) +
         formatted(
             "<canvas data-columns=\"%d\" data-rows=\"%d\" data-width=\"%d\" data-height=\"%d\"></canvas>",
             grid.columns, grid.rows, grid.width, grid.height) +
         "</div>\n<img hidden alt=\"the masks\" " + data(masks) + "\n<script>" + std::string(kPageScript) +
         "</script>\n</body>\n</html>\n";
}

/// Writes the mask of these points, and the picture with it.
void predict_mask(Sam& model, const PromptedPicture& prompted, const std::filesystem::path& mask_file,
                  const std::filesystem::path& overlay_file) {
  const torch::NoGradGuard no_grad;
  const auto processor = processor_of(*model);
  const auto batch = make_prompted_batch({prompted}, processor);
  const auto output =
      model->forward(batch.input, {.points = points_of(batch), .labels = point_labels_of(batch)},
                     /*multimask=*/false);
  const auto mask =
      processor.mask_logits(output.masks[0][0][0], {prompted.picture->height, prompted.picture->width}) > 0;
  write_mask(mask_file, mask);
  auto row = prediction_row(batch, 0, mask);
  row.truth = {};
  image::write_png(overlay_file, draw_prediction(row));
  std::cout << "wrote " << mask_file.string() << ": " << mask.sum().item<std::int64_t>() << " of "
            << mask.numel() << " pixels; " << overlay_file.string() << " shows them on the picture"
            << std::endl;
}

}  // namespace

int run_predict_command(int argc, char** argv) {
  std::filesystem::path image, checkpoint, mask_file, overlay_file, page_file;
  std::vector<std::string> points;
  settings::Command command;
  command.name = "worker sam";
  command.usage = "worker sam --predict IMAGE --point X,Y[,0] --checkpoint RUN|DIR|FILE --mask-out FILE";
  command.description = "with --predict: writes the mask of the object under the points; runs on the CPU.";
  command.settings = {
      settings::help_flag(),
      settings::path("predict", image, "a PNG or JPEG").type("IMAGE"),
      settings::list("point", points,
                     "a pixel of the object, or with ,0 a pixel outside of it; can be repeated")
          .type("X,Y[,0]"),
      settings::path("checkpoint", checkpoint,
                     "the model: a run's folder, or a model saved by transformers' SamModel")
          .type("RUN|DIR|FILE"),
      settings::path("mask-out", mask_file, "PNG to write: 255 where the mask is, 0 elsewhere"),
      settings::path("overlay-out", overlay_file,
                     "PNG to write: the picture with the mask's outline and the points (default: "
                     "mask.overlay.png beside mask.png)"),
      settings::path("page-out", page_file,
                     "HTML page to write, which shows the mask of the point that you click on; without "
                     "--point and --mask-out, write only the page"),
  };
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "--predict" && (words[1] == "--help" || words[1] == "-h"))
    words.erase(words.begin());
  const bool any_page = std::ranges::any_of(words, [](const std::string& word) {
    return word.starts_with("--page-out") || word.starts_with("--page_out");
  });
  std::vector<std::string> needed = {"predict", "point", "checkpoint", "mask-out"};
  if (any_page) needed = {"predict", "checkpoint"};
  if (!apply_words(words, command, needed)) return EXIT_SUCCESS;
  if (points.empty() != mask_file.empty())
    throw UsageError("--point and --mask-out: give both, or, with --page-out, neither");

  if (overlay_file.empty() && !mask_file.empty())
    overlay_file = std::filesystem::path(mask_file).replace_extension(".overlay.png");
  PromptedPicture prompted;
  if (points.empty())
    prompted.picture =
        std::make_shared<const image::Image>(image::to_rgb(image::read_image(image, kMaxSegmentedPixels)));
  else
    prompted = read_prompted_picture(image, points);
  for (const auto& file : {mask_file, overlay_file, page_file})
    if (!file.empty()) check_writable(file, image);
  auto model = read_sam(checkpoint);
  model->eval();
  if (!mask_file.empty()) predict_mask(model, prompted, mask_file, overlay_file);
  if (page_file.empty()) return EXIT_SUCCESS;
  const auto grid = grid_for(*prompted.picture);
  const auto masks = masks_of_clicks(model, *prompted.picture, grid);
  write_file_atomic(page_file, click_page(image.filename().string(), *prompted.picture, masks, grid));
  std::cout << "wrote " << page_file.string() << ": open it in a browser and click on an object" << std::endl;
  return EXIT_SUCCESS;
}

}  // namespace ddprun::sam
