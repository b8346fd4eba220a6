// Whether a JSON schema can be enforced, before anything is compiled from it.
#pragma once

#include "io/json_field.h"

namespace coppice {

inline constexpr std::size_t kMaxSchemaBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMaxPatternBytes = 8192;    // of a regular expression
inline constexpr std::int64_t kMaxSchemaCount = 10'000;  // minLength, maxItems and the like

// Throws 400 naming the keyword's place for what is too large and, unless `lenient`, for keywords
// that no grammar here can enforce. Annotations and `format`s are left as they are; oneOf counts
// as anyOf.
void check_json_schema(const JsonField& schema, bool lenient);

// The schema with patterns in ASCII, the form in which the grammar keeps them from breaking the
// JSON string around them, without patterns and formats that would break it all the same, and
// without patternProperties beside properties, whose keys could come twice.
Json with_json_patterns(const Json& schema);

}  // namespace coppice
