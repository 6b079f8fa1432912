#include "coordinator/api/tls_credentials.h"

#include <fmt/format.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>
#include <vector>

#include "base/certificates/certificate.h"
#include "base/certificates/durable_file.h"
#include "base/certificates/private_key.h"
#include "base/clock.h"

namespace holdfast::coord {
namespace {
namespace tls_api = grpc::experimental;
using certificates::Certificate;

constexpr unsigned int kReloadSeconds = 1;
constexpr std::string_view kRelayRole = "relay";
constexpr int64_t kSecondInNanos = 1'000'000'000;

Result<std::string> ReadPem(const std::string& path, std::string_view key) {
  auto pem = certificates::ReadSmallFile(path);
  if (!pem) return Fail(InvalidArgumentError(fmt::format("tls.{}: cannot read '{}'", key, path)));
  if (pem->find("-----BEGIN ") == std::string::npos) {
    return Fail(InvalidArgumentError(fmt::format("tls.{}: '{}' is not a PEM file", key, path)));
  }
  return pem;
}

Status CheckFiles(const TlsFiles& tls) {
  if (tls.ca.empty() || tls.cert.empty() || tls.key.empty()) {
    return InvalidArgumentError("tls needs all three of tls.ca, tls.cert and tls.key");
  }
  for (const auto& [path, key] :
       {std::pair{&tls.ca, "ca"}, {&tls.cert, "cert"}, {&tls.key, "key"}}) {
    auto pem = ReadPem(*path, key);
    if (!pem) return pem.error();
  }
  return Status::Ok();
}

std::shared_ptr<tls_api::CertificateProviderInterface> Watch(const TlsFiles& tls) {
  return std::make_shared<tls_api::FileWatcherCertificateProvider>(tls.key, tls.cert, tls.ca,
                                                                   kReloadSeconds);
}

std::string TextOf(grpc::string_ref text) { return {text.data(), text.size()}; }

bool HasRole(const std::string& uri, ServerRole wanted) {
  const auto parts = certificates::SplitSpiffeUri(uri);
  if (!parts) return false;
  return parts->role == certificates::kCoordinatorRole ||
         (wanted == ServerRole::kCoordinatorOrRelay && parts->role == kRelayRole);
}

/// Checks the host name and, unless any role will do, the name in the server's certificate. An
/// agent whose certificate has the same host name is no coordinator.
class ServerVerifier : public tls_api::ExternalCertificateVerifier {
 public:
  explicit ServerVerifier(ServerRole role) : role_(role) {}

  bool Verify(tls_api::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> callback, grpc::Status* sync_status) override {
    if (!host_.Verify(request, std::move(callback), sync_status)) return false;
    if (!sync_status->ok() || role_ == ServerRole::kAny) return true;
    bool named = false;
    bool coordinator = false;
    for (const grpc::string_ref& name : request->uri_names()) {
      const std::string uri = TextOf(name);
      if (!uri.starts_with(certificates::kSpiffe)) continue;
      named = true;
      coordinator = coordinator || HasRole(uri, role_);
    }
    if (named && !coordinator) {
      *sync_status = {grpc::StatusCode::UNAUTHENTICATED,
                      "the server's certificate is not of a coordinator: its spiffe:// name has "
                      "another role"};
    }
    return true;
  }

  void Cancel(tls_api::TlsCustomVerificationCheckRequest* request) override {
    host_.Cancel(request);
  }

 private:
  const ServerRole role_;
  tls_api::HostNameCertificateVerifier host_;
};

/// Accepts only the chain of one authority.
class PinVerifier : public tls_api::ExternalCertificateVerifier {
 public:
  PinVerifier(certificates::Pin pin, const Clock& clock, std::shared_ptr<Result<std::string>> why)
      : pin_(std::move(pin)), clock_(clock), why_(std::move(why)) {}

  bool Verify(tls_api::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* sync_status) override {
    auto cluster = certificates::CheckPinnedChain(TextOf(request->peer_cert_full_chain()), pin_,
                                                  clock_.WallNanos() / kSecondInNanos);
    if (!cluster) {
      *sync_status = {grpc::StatusCode::UNAUTHENTICATED, cluster.error().message()};
    }
    *why_ = std::move(cluster);
    return true;
  }

  void Cancel(tls_api::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const certificates::Pin pin_;
  const Clock& clock_;
  const std::shared_ptr<Result<std::string>> why_;
};
}  // namespace

Result<std::shared_ptr<grpc::ChannelCredentials>> MakeTlsChannelCredentials(const TlsFiles& tls,
                                                                            ServerRole server) {
  HOLDFAST_RETURN_IF_ERROR(CheckFiles(tls));
  tls_api::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(tls));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      tls_api::ExternalCertificateVerifier::Create<ServerVerifier>(server));
  return tls_api::TlsCredentials(options);
}

Result<std::shared_ptr<grpc::ServerCredentials>> MakeTlsServerCredentials(const TlsFiles& tls) {
  HOLDFAST_RETURN_IF_ERROR(CheckFiles(tls));
  tls_api::TlsServerCredentialsOptions options(Watch(tls));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls_api::TlsServerCredentials(options);
}

Result<std::shared_ptr<grpc::ServerCredentials>> MakeOpenTlsServerCredentials(const TlsFiles& tls) {
  HOLDFAST_RETURN_IF_ERROR(CheckFiles(tls));
  tls_api::TlsServerCredentialsOptions options(Watch(tls));
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return tls_api::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> MakePinnedChannelCredentials(
    const certificates::Pin& pin, const Clock& clock, std::shared_ptr<Result<std::string>> why) {
  tls_api::TlsChannelCredentialsOptions options;
  // PinVerifier checks the whole chain, after the handshake and before the first byte of a call.
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      tls_api::ExternalCertificateVerifier::Create<PinVerifier>(pin, clock, std::move(why)));
  return tls_api::TlsCredentials(options);
}

}  // namespace holdfast::coord
