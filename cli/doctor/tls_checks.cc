#include "cli/doctor/tls_checks.h"

#include <fmt/format.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>

#include "base/clock.h"

namespace holdfast::cli {
namespace {

constexpr int64_t kDay = 86'400;
constexpr int64_t kSoonDays = 14;
constexpr int64_t kOverdueShare = 4;  // of its time: a renewed certificate should have more left

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
};

/// Returns seconds since 1970.
int64_t SecondsOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? ::timegm(&parts) : 0;
}

std::string DateOf(int64_t seconds) { return FormatUtc(seconds * 1'000'000'000).substr(0, 10); }

/// Returns "2026-11-29 12:19 UTC".
std::string TimeOf(int64_t seconds) {
  std::string text = FormatUtc(seconds * 1'000'000'000).substr(0, 16);
  text[10] = ' ';
  return text + " UTC";
}

/// Describes a certificate that the agent renews, and that is valid until `end`.
void DescribeRenewed(const std::string& path, int64_t begin, int64_t end, int64_t now,
                     Finding& finding) {
  const bool overdue = (end - now) * kOverdueShare < end - begin;
  finding.readiness = overdue ? Readiness::kWarn : Readiness::kOk;
  finding.what = fmt::format("{} is valid until {}, {}", path, TimeOf(end),
                             overdue ? "and has not been renewed" : "and is renewed before");
  if (!overdue) return;
  finding.remedy =
      "the agent renews it while it is attached to a coordinator; its log (CertificateNotRenewed) "
      "has the reason";
}

Finding CheckFile(const std::string& key, const std::string& path, bool renewed, int64_t now) {
  Finding finding{key, Readiness::kFail, "", ""};
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) {
    finding.readiness = errno == EACCES ? Readiness::kUnknown : Readiness::kFail;
    finding.what = fmt::format("{}: {}", path, std::strerror(errno));
    finding.remedy = errno == EACCES ? "run this command as root or as the agent's user"
                                     : fmt::format("name an existing file as {}", key);
    return finding;
  }
  int64_t first_end = INT64_MAX;
  int64_t last_begin = 0;
  int count = 0;
  for (;; ++count) {
    const std::unique_ptr<X509, FreeCertificate> certificate(
        PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
    if (certificate == nullptr) break;
    last_begin = std::max(last_begin, SecondsOf(X509_get0_notBefore(certificate.get())));
    first_end = std::min(first_end, SecondsOf(X509_get0_notAfter(certificate.get())));
  }
  if (count == 0) {
    finding.what = path + " has no certificate in PEM form";
    finding.remedy = fmt::format("name a PEM file as {}", key);
    return finding;
  }
  finding.what = fmt::format("{} is valid until {}", path, DateOf(first_end));
  if (now < last_begin) {
    finding.what = fmt::format("{} is valid only from {}", path, DateOf(last_begin));
    finding.remedy = "set this machine's clock, or issue the certificate again";
  } else if (now >= first_end) {
    finding.what = fmt::format("{} expired on {}", path, DateOf(first_end));
    finding.remedy = renewed ? "let the node join again with a new token: holdfast token create"
                             : "issue a new certificate, and restart the agent with it";
  } else if (renewed) {
    DescribeRenewed(path, last_begin, first_end, now, finding);
  } else if (first_end - now < kSoonDays * kDay) {
    finding.readiness = Readiness::kWarn;
    finding.what += fmt::format(", only {} days from now", (first_end - now) / kDay);
    finding.remedy = "issue a new certificate, and restart the agent with it";
  } else {
    finding.readiness = Readiness::kOk;
  }
  return finding;
}

}  // namespace

Findings CheckTlsDates(const coord::TlsFiles& tls, bool renewed, int64_t now_nanos) {
  if (!tls.configured()) return {{"tls", Readiness::kSkipped, "not configured", ""}};
  Findings findings;
  const int64_t now = now_nanos / 1'000'000'000;
  if (!tls.ca.empty()) findings.push_back(CheckFile("tls.ca", tls.ca, false, now));
  if (!tls.cert.empty()) findings.push_back(CheckFile("tls.cert", tls.cert, renewed, now));
  return findings;
}

}  // namespace holdfast::cli
