#pragma once

// What a request asks for turns out to be impossible while it runs, where submit() could not see it: its bans leave
// none of the tokens that could come, its schema opens too many alternatives. Its own fault, not the engine's: the
// request ends, others go on.
// Threads: a value.

#include <stdexcept>
#include <string>
#include <utility>

namespace memoir::engine {

class RequestFault : public std::runtime_error {
 public:
  /// field: the part of the request at fault, as SamplerOptions names it ("logit_bias"), or empty.
  RequestFault(std::string field, const std::string& reason) : std::runtime_error(reason), field_(std::move(field)) {}

  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

}  // namespace memoir::engine
