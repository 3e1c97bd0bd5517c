// Continues a text with a model: load, one session, generate as the text comes.

#include <memoir/memoir.h>

#include <exception>
#include <iostream>
#include <string_view>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: example MODEL TEXT\n";
    return 2;
  }
  try {
    const memoir::model::LoadedModel loaded = memoir::model::load_model(argv[1]);
    if (!loaded.tokenizer) throw memoir::UnsupportedError(argv[1], "tokenizer.json", "there is none");
    memoir::engine::Session session(*loaded.model);
    memoir::engine::GenerateOptions options;
    options.max_tokens = 16;
    options.stop_tokens = loaded.end_tokens;
    memoir::engine::generate(session, loaded.tokenizer->encode(argv[2], {.add_special = true}), options,
                             &*loaded.tokenizer, [](std::string_view text) { std::cout << text << std::flush; });
    std::cout << "\n";
  } catch (const std::exception& error) {
    std::cerr << "example: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
