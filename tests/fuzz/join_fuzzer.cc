// Feeds text to the parsers of input from sides that are not authenticated yet: join tokens, the
// fields of an enrollment, certificate signing requests.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/certificates/authority.h"
#include "base/certificates/enrollment.h"
#include "base/certificates/join_token.h"
#include "base/ids.h"
#include "tests/fuzz/require.h"

namespace holdfast::certificates {
namespace {
constexpr char kSeparator = '\x01';  // between the fields of an enrollment

void ParseToken(std::string_view text) {
  const auto token = JoinToken::Parse(text);
  if (token) {
    FUZZ_REQUIRE(token->ToText() == text);
  } else {
    FUZZ_REQUIRE(token.error().code() == ErrorCode::kInvalidArgument);
    // Error messages are logged. They must not quote the text, which may be a secret.
    FUZZ_REQUIRE(token.error() == JoinToken::Parse("").error());
  }
}

/// Splits the input into token ID, secret, name, request, and hosts.
Enrollment Split(std::string_view text) {
  std::vector<std::string> fields;
  while (true) {
    const size_t end = text.find(kSeparator);
    fields.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  fields.resize(std::max<size_t>(fields.size(), 4));
  return {fields[0], fields[1], fields[2], fields[3], {fields.begin() + 4, fields.end()}};
}

void Check(const Enrollment& enrollment) {
  const auto checked = CheckEnrollment(enrollment);
  if (!checked) {
    FUZZ_REQUIRE(checked.error().code() == ErrorCode::kInvalidArgument);
    FUZZ_REQUIRE(!checked.error().message().empty());
    return;
  }
  FUZZ_REQUIRE(ValidateName("name", enrollment.name).ok());
  FUZZ_REQUIRE(checked->hosts.front() == enrollment.name);
  for (const std::string& host : checked->hosts) {
    FUZZ_REQUIRE(host.find('\0') == std::string::npos);
  }
  // An accepted request can be issued, and the certificate has exactly the key and these hosts.
  static const Authority authority = *Authority::Create("c", 0);
  const std::string uri = SpiffeUri("c", "agent", enrollment.name);
  const auto issued = authority.Sign(checked->request.key(), {uri, checked->hosts, 0, 86'400});
  FUZZ_REQUIRE(issued.has_value());
  FUZZ_REQUIRE(issued->Hash() == checked->request.Hash());
  FUZZ_REQUIRE(issued->SpiffeUris() == std::vector<std::string>{uri});
  FUZZ_REQUIRE(issued->Hosts().size() == checked->hosts.size());
  for (const std::string& host : issued->Hosts()) {
    FUZZ_REQUIRE(ValidateHost("host", host).ok());
  }
}
}  // namespace
}  // namespace holdfast::certificates

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace holdfast::certificates;
  const std::string text(reinterpret_cast<const char*>(data), size);
  ParseToken(text);
  Check(Split(text));
  const auto request = Request::FromPem(text);
  if (request) FUZZ_REQUIRE(request->Hash().size() == 64);
  return 0;
}
