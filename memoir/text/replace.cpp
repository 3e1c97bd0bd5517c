#include "memoir/text/replace.h"

#include <utility>

#include "memoir/base/error.h"

namespace memoir::text {
namespace {

// A text that is made of pieces of another one and of `content`.
class Replacer {
 public:
  Replacer(std::string_view text, std::string_view content, const GrowthLimit& limit)
      : text_(text), content_(content), limit_(limit) {}

  void replace(Span found) {
    limit_.check(result_.size() + (found.begin - done_) + content_.size());
    result_.append(text_.substr(done_, found.begin - done_)).append(content_);
    done_ = found.end;
  }

  std::string finish() {
    limit_.check(result_.size() + (text_.size() - done_));
    return std::move(result_.append(text_.substr(done_)));
  }

 private:
  std::string_view text_;
  std::string_view content_;
  const GrowthLimit& limit_;
  std::string result_;
  std::size_t done_ = 0;
};

}  // namespace

void GrowthLimit::check(std::size_t n_bytes) const {
  if (n_bytes <= max_bytes) return;
  throw UnsupportedError(
      step.path, step.key,
      "the steps up to this one make more than " + std::to_string(kMaxGrowth) + " bytes for each byte of the text");
}

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content,
                        const GrowthLimit& limit) {
  Replacer replacer(text, content, limit);
  for (std::size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, at + pattern.size())) {
    replacer.replace({at, at + pattern.size()});
  }
  return replacer.finish();
}

std::string replace_all(std::string_view text, const Regex& regex, std::string_view content, const GrowthLimit& limit) {
  Replacer replacer(text, content, limit);
  regex.for_each(text, [&](Span found) { replacer.replace(found); });
  return replacer.finish();
}

}  // namespace memoir::text
