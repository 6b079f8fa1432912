#pragma once

#include <string>
#include <string_view>

namespace holdfast::ui {

/// The page, with its style and script: page.html. It has no data.
std::string_view PageText();

/// The value of the header Content-Security-Policy: the browser runs only the script of the page,
/// and connects only to the server of the page.
std::string ContentPolicy(std::string_view page);

}  // namespace holdfast::ui
