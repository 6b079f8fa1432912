#include "coordinator/ui/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

namespace holdfast::ui {
namespace {
/// Returns the text of the first such element.
std::string_view ElementText(std::string_view page, std::string_view name) {
  const std::string open = fmt::format("<{}>", name);
  const size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find(fmt::format("</{}>", name), begin) - begin);
}

std::string Sha256Base64(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  std::array<unsigned char, 2 * EVP_MAX_MD_SIZE> encoded{};
  const int length = EVP_EncodeBlock(encoded.data(), digest.data(), static_cast<int>(size));
  return {reinterpret_cast<const char*>(encoded.data()), static_cast<size_t>(length)};
}
}  // namespace

std::string ContentPolicy(std::string_view page) {
  return fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; "
      "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      Sha256Base64(ElementText(page, "script")), Sha256Base64(ElementText(page, "style")));
}

}  // namespace holdfast::ui
