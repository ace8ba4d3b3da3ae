// What a stranger can send to ddprun's port: the same bytes as a greeting, as a message and as frames; and as
// payloads, "payload <section> payload ...", which go there and back.
#include "launcher/rendezvous/protocol.h"

#include "tests/fuzz/fuzz.h"

namespace ddprun::fuzz {
using namespace launcher;
namespace {

using Payloads = std::vector<std::string>;

void check_greeting(std::string_view bytes) {
  try {
    const Greeting greeting = decode_greeting(bytes);
    expect(bytes.size() >= kGreetingSize, "a greeting is whole");
    expect(decode_greeting(encode(greeting)) == greeting, "a greeting comes back");
    for (std::size_t size = 0; size <= bytes.size(); ++size)
      expect(may_be_greeting(bytes.substr(0, size)), "a greeting's begin may be a greeting");
  } catch (const ProtocolError& error) {
    expect_message(error.what());
  }
}

template <typename Messages>
void check_message(std::string_view json, Messages (*decode)(std::string_view)) {
  try {
    const Messages message = decode(json);
    const std::string text = encode(message);
    expect(is_utf8(text), "a message is UTF-8", text);
    expect(text.size() <= kMaxMessage, "a message fits into a frame", text);
    const Messages again = decode(text);
    expect(encode(again) == text, "an encoded message stays as it is", text);
    // Longer texts can be cut, as JSON takes more room for some characters.
    if (json.size() <= 2 * kMaxName) expect(again == message, "a message comes back", text);
  } catch (const ProtocolError& error) {
    expect_message(error.what());
    expect(std::string_view(error.what()).size() < 256, "a message for people is short", error.what());
  }
}

void check_messages(std::string_view json) {
  check_message(json, decode_node_message);
  check_message(json, decode_coordinator_message);
}

/// What a reader takes out of bytes that come in pieces of a size, and its error.
struct Reading {
  Payloads payloads;
  std::string error;
  bool operator==(const Reading&) const = default;
};

Reading read_frames(std::string_view bytes, const SessionSecrets& secrets, std::size_t piece) {
  Reading reading;
  FrameReader reader(Side::kNode, secrets);
  try {
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      reader.feed(bytes.substr(at, piece));
      while (auto payload = reader.next()) reading.payloads.push_back(std::move(*payload));
    }
  } catch (const ProtocolError& error) {
    expect_message(error.what());
    reading.error = error.what();
  }
  return reading;
}

SessionSecrets secrets(const std::string& token) {
  return {token, {!token.empty(), {1}}, {!token.empty(), {2}}};
}

void check_frames(std::string_view bytes) {
  const SessionSecrets open = secrets(""), closed = secrets("token");
  const Reading reading = read_frames(bytes, open, bytes.size() + 1);
  for (const std::string& payload : reading.payloads) {
    expect(payload.size() <= kMaxMessage, "a message has a limit");
    check_messages(payload);
  }
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}})
    expect(read_frames(bytes, open, piece) == reading, "pieces make no difference");
  expect(read_frames(bytes, closed, bytes.size() + 1).payloads.empty(), "nothing comes in without the token");
}

void check_there_and_back(const Payloads& payloads) {
  for (const SessionSecrets& each : {secrets(""), secrets("token")}) {
    FrameWriter writer(Side::kNode, each);
    std::string bytes;
    for (const std::string& payload : payloads) bytes += writer.frame(payload.substr(0, kMaxMessage));
    const Reading reading = read_frames(bytes, each, 100);
    expect(reading.error.empty() && reading.payloads.size() == payloads.size(), "frames come back",
           reading.error);
    for (std::size_t i = 0; i < payloads.size(); ++i)
      expect(reading.payloads[i] == payloads[i].substr(0, kMaxMessage), "a frame comes back", payloads[i]);
  }
}

}  // namespace
}  // namespace ddprun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::fuzz;
  const std::string_view bytes = text_of(data, size);
  check_greeting(bytes);
  check_messages(bytes);
  check_frames(bytes);
  check_there_and_back(split(bytes, kSection));
  return 0;
}
