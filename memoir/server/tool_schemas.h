#pragma once

// Schemas of calls: from the tools' parameters to what a call that must be made is held to. A call's arguments are an
// object, so of parameters that allow other values too only the objects are left.
// Any thread, no state.

#include "memoir/server/request_json.h"
#include "memoir/server/tool_calls.h"

namespace memoir::server {

/// Throws ApiError 400 naming `field` unless an object can keep to a tool's parameters, as far as their keywords tell.
void check_parameters(const Json& parameters, const std::string& field);

/// The schema that the arguments of a tool's call must follow.
Json arguments_schema(const Json& tool);

/// The schema that answers with exactly one call of one of these tools must follow.
Json forced_call_schema(const Json& tools, const ForcedCall& form);

}  // namespace memoir::server
