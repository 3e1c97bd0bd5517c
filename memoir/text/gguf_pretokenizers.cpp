#include "memoir/text/gguf_pretokenizers.h"

#include <utility>

namespace memoir::text {
namespace {

// Building blocks that the published patterns share.
const std::string kContraction = "'(?:[sdmtSDMT]|[lL][lL]|[vV][eE]|[rR][eE])";
const std::string kWord = "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+";
const std::string kSymbols = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*";
const std::string kSymbolsOrSlash = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*";
const std::string kLines = "|\\s*[\\r\\n]+";
const std::string kSpaces = "|\\s+(?!\\S)|\\s+";

const std::string kGpt2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const std::string kLlama3 = kContraction + kWord + "|\\p{N}{1,3}" + kSymbols + kLines + kSpaces;
const std::string kQwen2 = kContraction + kWord + "|\\p{N}" + kSymbols + kLines + kSpaces;
const std::string kQwen35 = kContraction +
                            "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" +
                            kLines + kSpaces;
const std::string kDeepSeek3 =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*" +
    kLines + kSpaces;
const std::string kKana = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";

// llama.cpp knows no letter case beyond ASCII: every other letter counts as upper and as lower case.
const std::string kUpper = "(?:(?![a-z])\\p{L})";
const std::string kLower = "(?:(?![A-Z])\\p{L})";

std::string cased_words(const std::string& ending) {
  const std::string lead = "[^\\r\\n\\p{L}\\p{N}]?";
  return lead + kUpper + "*" + kLower + "+" + ending + "|" + lead + kUpper + "+" + kLower + "*" + ending;
}

const std::string kTekken = cased_words("") + "|\\p{N}" + kSymbolsOrSlash + kLines + kSpaces;
const std::string kGpt4o =
    cased_words("(?:" + kContraction + ")?") + "|\\p{N}{1,3}" + kSymbolsOrSlash + kLines + kSpaces;

const std::string kCaseLead = "[^\\r\\n\\p{L}\\p{N}]?";
const std::string kUpperSet = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]";
const std::string kLowerSet = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
const std::string kCohere = kCaseLead + kUpperSet + "*" + kLowerSet + "+(?:" + kContraction + ")?|" + kCaseLead +
                            kUpperSet + "+" + kLowerSet + "*(?:" + kContraction + ")?|\\p{N}{1,3}" + kSymbolsOrSlash +
                            kLines + kSpaces;

const std::string kDeepSeekLetters =
    "\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373"
    "\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F"
    "\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77"
    "\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D"
    "\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4"
    "\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139"
    "\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D"
    "\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A"
    "\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
    "\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+";
const std::string kDeepSeekHan = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";
const std::string kDeepSeekPunctuation = "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+";
const std::string kAsianScripts =
    "[\u4E00-\u9FFF\u3400-\u4DBF\u8C48-\uFAFF\u3040-\u309F\u30A0-\u30FF\uFF65-\uFF9F\u2F00-\u2FDF\u0E40-\u0E7F"
    "\u0E80-\u0EFF\u1780-\u17FF\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF\uAC00-\uD7AF\u1100-\u11FF]+";
const std::string kBloom = " ?[^(\\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+";

using Patterns = std::vector<std::string>;

struct Family {
  GgufPreTokenizer pre;
  std::vector<std::string_view> names;
};

GgufPreTokenizer plain(Patterns patterns) {
  return {.patterns = std::move(patterns)};
}

GgufPreTokenizer whole_words(Patterns patterns, bool add_bos = false) {
  return {.patterns = std::move(patterns), .ignore_merges = true, .add_bos = add_bos};
}

std::vector<Family> make_families() {
  const std::string lines = "[^\\n]+|\\n+";
  return {
      {plain({"[\\p{P}$+<=>\\^~|]+", kGpt2, "\\p{N}+", "[0-9][0-9][0-9]"}), {"default"}},
      {plain({kGpt2}),
       {"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum",
        "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais", "trillion",
        "granite-docling", "exaone4"}},
      {plain({"\\p{N}", kGpt2}),
       {"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"}},
      {whole_words({kLlama3}, true),
       {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"}},
      {plain({kLlama3}), {"dbrx", "smaug-bpe", "chatglm-bpe"}},
      {whole_words({kLlama3}), {"glm4", "glm5"}},
      {plain({kQwen2}),
       {"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"}},
      {plain({kQwen35}), {"qwen35"}},
      {plain({"[\\r\\n]", kDeepSeekLetters, kDeepSeekPunctuation, "\\s+$", kDeepSeekHan, "\\p{N}+"}), {"deepseek-llm"}},
      {plain({"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepSeekHan, "\\p{N}"}), {"deepseek-coder"}},
      {plain({"\\p{N}{1,3}", kKana, kDeepSeek3}), {"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"}},
      {plain({"[\\p{P}$+<=>\\^~|`]+", kGpt2, "[0-9][0-9][0-9]"}), {"falcon"}},
      {plain({kBloom}), {"poro-chat", "bloom", "gpt3-finnish"}},
      {plain({kBloom, "\\p{N}"}), {"viking"}},
      {whole_words({kTekken}, true), {"tekken"}},
      {plain({kGpt4o}), {"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}},
      {{.patterns = {kCohere}, .digit_groups = true}, {"tiny_aya", "cohere2moe"}},
      {{.patterns = {kAsianScripts, kDeepSeek3}, .digit_groups = true}, {"afmoe"}},
      {plain({kContraction + kWord + "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]" + kSpaces}),
       {"bailingmoe", "bailingmoe2", "llada-moe"}},
      {plain({kContraction + kWord + "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" + kLines + kSpaces}), {"seed-coder"}},
      {plain({kWord.substr(1) + "|\\p{N}" + kSymbols + kLines + kSpaces}), {"ufakzeka"}},
      {whole_words({"\\p{N}{1,3}", kContraction + kWord + "|\\p{N}+" + kSymbols + kLines + kSpaces}), {"minicpm5"}},
      {plain({lines, kQwen2}), {"laguna"}},
      {{.patterns = {lines}, .add_bos = true, .escape_spaces = true, .whole_newlines = true},
       {"gemma4", "granite-embed-multi-311m"}},
      {{.patterns = {lines}, .escape_spaces = true}, {"sarvam-moe"}},
  };
}

}  // namespace

std::optional<GgufPreTokenizer> gguf_pre_tokenizer(std::string_view name) {
  static const std::vector<Family> families = make_families();
  for (const Family& family : families) {
    for (const std::string_view known : family.names) {
      if (known == name) return family.pre;
    }
  }
  return std::nullopt;
}

}  // namespace memoir::text
