#include <ATen/autocast_mode.h>
#include <torch/types.h>

#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/train/optim/gradients.h>
#include "tests/support/catch.h"
#include "tests/worker/sam/sam_support.h"
#include "worker/sam/model/sam.h"

using namespace ddprun;
using namespace ddprun::test;
using sam::Sam;
using sam::SamConfig;

namespace {

std::int64_t numbers_of(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

struct ConfigFile {
  TempDir folder;
  std::filesystem::path path = folder.path() / "config.json";
  explicit ConfigFile(const std::string& text) { write_file_atomic(path, text); }
};

}  // namespace

TEST_CASE("SAM base has as many parameters as its authors'", "[sam]") {
  const Sam model(SamConfig::base());
  CHECK(numbers_of(*model) == 93'735'472);
  CHECK(model->named_buffers().size() == 2);
  CHECK(model->named_buffers()[kSamPositions].is_same(
      model->named_buffers()["prompt_encoder.shared_embedding.positional_embedding"]));
}

TEST_CASE("SAM's shapes are base's, large's and huge's", "[sam]") {
  CHECK(SamConfig::base().vision.hidden_size == 768);
  CHECK(SamConfig::large().vision.num_hidden_layers == 24);
  CHECK(SamConfig::large().vision.mlp_dim == 4096);
  CHECK(SamConfig::huge().vision.global_attn_indexes == std::vector<std::int64_t>{7, 15, 23, 31});
  for (const auto& config : {SamConfig::base(), SamConfig::large(), SamConfig::huge()}) {
    CHECK(problem(config).empty());
    CHECK(config.mask_size() == 256);
  }
}

TEST_CASE("a SamConfig comes back from its config.json", "[sam]") {
  auto config = small_sam_config();
  config.vision.qkv_bias = false;
  config.vision.hidden_act = sam::Activation::kRelu;
  config.mask_decoder.iou_head_depth = 5;
  const auto text = to_json(config);
  CHECK(to_json(sam::read_sam_config(ConfigFile(text).path)) == text);
  CHECK(to_json(sam::read_sam_config(ConfigFile("{}").path)) == to_json(SamConfig::base()));
}

TEST_CASE("what is wrong in a config.json is said in one line with its key", "[sam]") {
  const auto refused = [](const std::string& text, const std::string& expected) {
    const ConfigFile file(text);
    CAPTURE(text);
    CHECK_THROWS_AS(sam::read_sam_config(file.path), IoError);
    CHECK_THROWS_WITH(sam::read_sam_config(file.path),
                      ContainsSubstring("config.json: ") && ContainsSubstring(expected));
  };
  refused("[", "is not JSON, expected the config.json of a SamModel");
  refused("[]", "expected an object, got []");
  refused(std::string(1'000'000, '['),
          "is nested deeper than 32 levels, expected the config.json of a SamModel");
  refused(R"({"vision_config": )" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}",
          "is nested deeper than 32 levels");
  refused(R"({"model_type": "sam2"})", R"(model_type: expected "sam", got "sam2")");
  refused(R"({"vision_config": 3})", "vision_config: expected an object, got 3");
  refused(R"({"vision_config": {"hidden_size": "x"}})",
          R"(vision_config.hidden_size: expected a whole number)");
  refused(R"({"vision_config": {"hidden_size": -1}})", "from 0 to 65536, got -1");
  refused(R"({"vision_config": {"hidden_size": 1e9}})", "got 1000000000");
  refused(R"({"vision_config": {"hidden_size": 770}})",
          "expected a multiple of num_attention_heads (12), got 770");
  refused(R"({"vision_config": {"mlp_ratio": 1e308}})",
          "vision_config.mlp_ratio: expected hidden_size * mlp_ratio to be at most 65536, got 1e+308");
  refused(R"({"vision_config": {"mlp_ratio": 1e9}})", "vision_config.mlp_ratio: expected hidden_size");
  refused(R"({"vision_config": {"image_size": [1024, 1024]}})",
          "vision_config.image_size: expected a whole number");
  refused(R"({"vision_config": {"hidden_act": "silu"}})", R"(expected "gelu" or "relu", got "silu")");
  refused(R"({"vision_config": {"global_attn_indexes": [1, "2"]}})", "expected a list of whole numbers");
  refused(R"({"vision_config": {"qkv_bias": 1}})", "vision_config.qkv_bias: expected true or false, got 1");
  refused(R"({"vision_config": {"image_size": 512}})",
          "prompt_encoder_config.image_size: expected vision_config.image_size (512), got 1024");
  refused(R"({"mask_decoder_config": {"num_attention_heads": 0}})",
          "mask_decoder_config.num_attention_heads: expected a number above 0, got 0");
}

TEST_CASE("a SAM that no machine holds is refused before it is made", "[sam]") {
  const auto refused = [](const SamConfig& config, const std::string& expected) {
    CAPTURE(expected);
    CHECK_THAT(problem(config), ContainsSubstring(expected));
    CHECK_THROWS_AS(Sam(config), std::invalid_argument);
  };
  auto config = SamConfig::huge();
  CHECK(problem(config).empty());
  SECTION("window") {
    config.vision.window_size = 3000;
    refused(config, "vision_config.window_size: expected a number from 0 to 512, got 3000");
  }
  SECTION("window below 0") {
    config.vision.window_size = -1;
    refused(config, "vision_config.window_size: expected a number from 0 to 512, got -1");
  }
  SECTION("image") {
    config.vision.image_size = config.prompt_encoder.image_size = 65536;
    refused(config, "vision_config.image_size: expected a number from 0 to 16384, got 65536");
  }
  SECTION("patches") {
    config.vision.patch_size = config.prompt_encoder.patch_size = 1;
    refused(config, "vision_config.image_size / patch_size: expected a number from 0 to 512, got 1024");
  }
  SECTION("layers") {
    config.vision.num_hidden_layers = 65536;
    refused(config, "vision_config.num_hidden_layers: expected a number from 0 to 1024, got 65536");
  }
  SECTION("parameters of the layers") {
    config.vision.num_hidden_layers = 1024;
    refused(config, "vision_config.num_hidden_layers: expected a model of at most 2147483648 parameters");
  }
  SECTION("parameters of one layer") {
    config.vision.hidden_size = 65536;
    refused(config, "vision_config.hidden_size: expected a model of at most 2147483648 parameters");
  }
  SECTION("parameters of the decoder") {
    config.mask_decoder.iou_head_hidden_dim = 65536;
    refused(config, "mask_decoder_config.iou_head_hidden_dim: expected a model of at most");
  }
}

TEST_CASE("a SAM is of images in colour", "[sam]") {
  auto config = SamConfig::base();
  config.vision.num_channels = GENERATE(0, 1, 4);
  CHECK(problem(config) ==
        "vision_config.num_channels: expected 3, got " + std::to_string(config.vision.num_channels));
}

TEST_CASE("a new SAM sees its image and its point", "[sam]") {
  auto model = small_sam();
  const auto input = make_sam_input(model->config(), "points", torch::kFloat);
  const torch::NoGradGuard no_grad;
  const auto masks = model->forward(input.image, input.prompts).masks;
  CHECK(relative_difference(model->forward(input.image.flip(0), input.prompts).masks, masks) > 1e-3);
  auto moved = input.prompts;
  moved.points = moved.points.flip(0);
  CHECK(relative_difference(model->forward(input.image, moved).masks, masks) > 1e-3);
}

TEST_CASE("SAM answers several prompts at once as one by one", "[sam]") {
  auto model = small_sam();
  model->to(torch::kDouble);
  const auto prompts = GENERATE("points", "boxes", "points boxes masks");
  CAPTURE(prompts);
  const auto input = make_sam_input(model->config(), prompts, torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto all = model->forward(input.image, input.prompts);
  for (std::int64_t p = 0; p < 2; ++p) {
    const auto only = [&](const torch::Tensor& x) { return x.defined() ? x.narrow(1, p, 1) : x; };
    const sam::SamPrompts one{only(input.prompts.points), only(input.prompts.labels),
                              only(input.prompts.boxes), input.prompts.masks};
    const auto alone = model->forward(input.image, one);
    CHECK(relative_difference(all.masks.narrow(1, p, 1), alone.masks) < 1e-12);
    CHECK(relative_difference(all.iou_scores.narrow(1, p, 1), alone.iou_scores) < 1e-12);
  }
}

TEST_CASE("points of padding change nothing", "[sam]") {
  auto model = small_sam();
  auto input = make_sam_input(model->config(), "points", torch::kFloat);
  const torch::NoGradGuard no_grad;
  const auto before = model->forward(input.image, input.prompts).masks;
  input.prompts.points[0][1][2].fill_(17);  // its label is -10
  CHECK(model->forward(input.image, input.prompts).masks.equal(before));
  input.prompts.points[0][1][1].fill_(17);
  CHECK_FALSE(model->forward(input.image, input.prompts).masks.equal(before));
}

TEST_CASE("points without labels are foreground", "[sam]") {
  auto model = small_sam();
  auto input = make_sam_input(model->config(), "points", torch::kFloat);
  const torch::NoGradGuard no_grad;
  input.prompts.labels.fill_(1);
  const auto labelled = model->forward(input.image, input.prompts).masks;
  input.prompts.labels = torch::Tensor();
  CHECK(model->forward(input.image, input.prompts).masks.equal(labelled));
}

TEST_CASE("a frozen part of SAM gets no gradient, the others do", "[sam]") {
  auto model = small_sam();
  const auto input = make_sam_input(model->config(), "points", torch::kFloat);
  const bool encoder = GENERATE(true, false);
  encoder ? model->freeze_encoder() : model->freeze_prompt_encoder();
  CHECK(model->image_embeddings(input.image).requires_grad() != encoder);
  model->forward(input.image, input.prompts).masks.sum().backward();
  const std::string frozen = encoder ? "vision_encoder." : "prompt_encoder.";
  for (const auto& item : model->named_parameters()) {
    CAPTURE(item.key());
    if (item.key().starts_with(frozen)) CHECK_FALSE(item.value().grad().defined());
    if (item.key().starts_with("mask_decoder.transformer")) CHECK(item.value().grad().defined());
  }
}

TEST_CASE("gradient checkpointing changes no bit of SAM's gradients", "[sam]") {
  const auto precision = GENERATE(train::Precision::k32, train::Precision::kBf16Mixed);
  auto plain = small_sam(), again = small_sam();
  again->set_gradient_checkpointing(true);
  const auto input = make_sam_input(plain->config(), "points", torch::kFloat);
  for (auto* model : {&plain, &again}) {
    for (int step = 0; step < 2; ++step) {  // gradients add up
      torch::Tensor loss;
      {
        const train::AutocastScope scope(precision, torch::kCPU);
        loss = (*model)->forward(input.image, input.prompts).masks.to(torch::kFloat).pow(2).sum();
      }
      loss.backward();
    }
  }
  for (const auto& item : plain->named_parameters()) {
    CAPTURE(item.key());
    const auto other = again->named_parameters()[item.key()].grad();
    REQUIRE(item.value().grad().defined() == other.defined());
    if (other.defined()) CHECK(item.value().grad().equal(other));
  }
}

TEST_CASE("SAM in bfloat16, whole or by autocast, gives nearly the same masks and has gradients", "[sam]") {
  auto model = small_sam();
  const auto input = make_sam_input(model->config(), "points masks", torch::kFloat);
  const auto expected = model->forward(input.image, input.prompts).masks.detach();
  {
    const train::AutocastScope scope(train::Precision::kBf16Mixed, torch::kCPU);
    const auto masks = model->forward(input.image, input.prompts).masks;
    CHECK(relative_difference(masks, expected) < 0.05);
    masks.to(torch::kFloat).sum().backward();
  }
  CHECK(model->named_parameters()["vision_encoder.layers.0.attn.rel_pos_h"]
            .grad()
            .isfinite()
            .all()
            .item<bool>());
  model->to(torch::kBFloat16);
  auto prompts = input.prompts;
  prompts.masks = prompts.masks.to(torch::kBFloat16);
  const auto masks = model->forward(input.image.to(torch::kBFloat16), prompts).masks;
  CHECK(masks.scalar_type() == torch::kBFloat16);
  CHECK(relative_difference(masks, expected) < 0.1);
}

TEST_CASE("SAM names the tensor that does not fit", "[sam]") {
  auto model = small_sam();
  const auto input = make_sam_input(model->config(), "points masks", torch::kFloat);
  const auto refused = [&](const torch::Tensor& image, const sam::SamPrompts& prompts, const char* expected) {
    CHECK_THROWS_AS(model->forward(image, prompts), std::invalid_argument);
    CHECK_THROWS_WITH(model->forward(image, prompts), ContainsSubstring(expected));
  };
  const auto& [points, labels, boxes, masks] = input.prompts;
  refused(torch::zeros({1, 3, 8, 8}), input.prompts,
          "expected image of shape [-1, 3, 40, 40] (-1: any), got [1, 3, 8, 8]");
  refused(input.image, {.points = points[0]},
          "expected points of shape [2, -1, -1, 2] (-1: any), got [2, 3, 2]");
  refused(input.image, {.points = points, .labels = labels.narrow(2, 0, 1)},
          "expected labels of shape [2, 2, 3]");
  refused(input.image, {.labels = labels}, "expected points with the labels");
  refused(input.image, {.points = points, .boxes = torch::zeros({2, 1, 4})},
          "expected boxes of shape [2, 2, 4]");
  refused(input.image, {.masks = masks.narrow(3, 0, 1)}, "expected masks of shape [2, 1, 20, 20]");
  auto config = small_sam_config();
  config.vision.patch_size = 7;
  CHECK_THROWS_WITH(Sam(config),
                    ContainsSubstring("SamConfig: vision_config.image_size: expected a multiple of"));
}
