#pragma once

#include <cstddef>

namespace holdfast::client {

/// memcpy for what nobody reads soon: larger pieces go past the caches, which neither fetches the
/// memory that is overwritten nor drives the training's own data out. When it returns, all of it is
/// visible to whoever sees what this thread stores afterwards.
void StreamCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace holdfast::client
