#pragma once

#include <cstddef>

namespace holdfast::client {

/// memcpy for data that is not read soon. Larger pieces bypass the caches, so that the copy neither
/// fetches the memory that it overwrites nor evicts the training program's data. A thread that sees
/// a later store of this thread also sees all copied bytes.
void StreamCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace holdfast::client
