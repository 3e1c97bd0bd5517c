#pragma once

// Small pieces of HTTP that are read or written without the library.

#include <string>
#include <string_view>

namespace memoir::server {

/// Whether two texts are equal but for the case of letters (ASCII).
bool equal_without_case(std::string_view a, std::string_view b);

/// Whether it can be a header's name: a token (RFC 9110, section 5.6.2).
bool is_header_name(std::string_view text);

/// A whole answer of JSON behind which the connection is closed, for where the library has no request or does not know
/// the status.
std::string plain_response(int status, const std::string& body);

}  // namespace memoir::server
