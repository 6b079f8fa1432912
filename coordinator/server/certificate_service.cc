#include "coordinator/server/certificate_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/certificates/enrollment.h"
#include "base/certificates/join_token.h"
#include "base/certificates/request.h"
#include "base/log.h"
#include "coordinator/api/access.h"
#include "coordinator/api/caller.h"
#include "coordinator/api/channel.h"
#include "coordinator/api/convert.h"
#include "coordinator/contract/text.h"
#include "coordinator/server/calls.h"

namespace holdfast::coord {
namespace {
using certificates::Request;

constexpr int64_t kTtlSecondsMax = 7LL * 86'400;
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr size_t kRevokeWhyBytesMax = 1024;

Status CheckRole(std::string_view role) {
  if (RoleNamed(role) != kNoRoles) return Status::Ok();
  return InvalidArgumentError(
      fmt::format("there is no role '{}': use agent, operator, runner or viewer",
                  CutText(std::string(role), 64)));
}

std::vector<std::string> TextsOf(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

/// Returns the hosts of the next certificate of a caller.
Result<std::vector<std::string>> HostsOf(
    const std::string& role, const std::string& name,
    const google::protobuf::RepeatedPtrField<std::string>& asked) {
  // Others are no servers, or only the authority's key issues their certificates.
  if (role != ToString(Role::kAgent) && role != ToString(Role::kRelay)) {
    return std::vector<std::string>();
  }
  return certificates::HostsOfNode(name, TextsOf(asked));
}

/// The name in the certificate of a caller.
struct CallerIdentity {
  std::string uri;
  std::string role;
  std::string name;
  int64_t not_before_s = 0;
};

Result<CallerIdentity> IdentityOf(const grpc::ServerContextBase& context) {
  CallerIdentity identity;
  const auto authenticated = context.auth_context();
  for (const grpc::string_ref& value :
       authenticated->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    const std::string uri(value.data(), value.size());
    auto name = ParseSpiffeName(uri);
    if (!name) continue;
    identity.uri = uri;
    identity.role = ToString(name->role);
    identity.name = name->name;
  }
  const auto pem = authenticated->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (identity.name.empty() || pem.empty()) {
    return Fail(
        FailedPreconditionError("your certificate has no spiffe:// name; its issuer renews it"));
  }
  HOLDFAST_ASSIGN_OR_RETURN(const auto certificate, certificates::Certificate::FromPem(
                                                        {pem.front().data(), pem.front().size()}));
  identity.not_before_s = certificate.not_before();
  return identity;
}
}  // namespace

grpc::ServerUnaryReactor* CertificateService::CreateToken(grpc::CallbackServerContext* context,
                                                          const pb::CreateTokenRequest* request,
                                                          pb::CreateTokenReply* reply) {
  Status status = CheckRole(request->role());
  if (status.ok() && !request->name().empty()) status = ValidateName("node", request->name());
  if (status.ok() && (request->ttl_s() < 1 || request->ttl_s() > kTtlSecondsMax)) {
    status = InvalidArgumentError("a token is valid from one second to seven days");
  }
  if (status.ok() && (!issuer_.enabled() || join_address_.empty())) {
    status = FailedPreconditionError(
        "this coordinator accepts no joins: set join.listen and join.ca_key in its configuration, "
        "or use the coordinator of `holdfast cluster init`");
  }
  auto token = certificates::MakeJoinToken(issuer_.issuer_hash());
  if (status.ok() && !token) status = token.error();
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  TokenRecord record;
  record.id = token->id;
  record.secret_hash = certificates::HashSecret(token->id, token->secret);
  record.role = request->role();
  record.name = request->name();
  record.created_wall_nanos = clock_.WallNanos();
  record.expires_wall_nanos = record.created_wall_nanos + request->ttl_s() * kSecondNs;
  return recorded_.CarryOut(
      context, "CreateToken", *request, reply,
      [&](RequestId id) {
        return TokenCreated{id, record};
      },
      [reply, text = token->ToText(), expires = record.expires_wall_nanos,
       address = join_address_](const Reply& r) {
        if (!r.outcome.ok()) return;
        reply->set_token(text);
        reply->set_expires_wall_nanos(expires);
        reply->set_join_address(address);
      });
}

grpc::ServerUnaryReactor* CertificateService::Renew(grpc::CallbackServerContext* context,
                                                    const pb::RenewRequest* request,
                                                    pb::RenewReply* reply) {
  auto identity = IdentityOf(*context);
  if (!identity) return ReplyOutcome(context, reply, identity.error());
  auto signing = Request::FromPem(request->request_pem());
  if (!signing) return ReplyOutcome(context, reply, signing.error());
  auto hosts = HostsOf(identity->role, identity->name, request->hosts());
  if (!hosts) return ReplyOutcome(context, reply, hosts.error());
  if (!issuer_.enabled()) {
    return ReplyOutcome(context, reply,
                        FailedPreconditionError("this coordinator has no join.ca_key"));
  }
  const RequestId id = applier_.NextId();
  IdentityRenewed event{id,
                        identity->role,
                        identity->name,
                        signing->Hash(),
                        identity->not_before_s,
                        issuer_.validity_s()};
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // A shared_ptr, since handlers are copied.
  const auto shared = std::make_shared<Request>(*std::move(signing));
  applier_.Submit(Event(std::move(event)), id,
                  [=, this, hosts = *std::move(hosts)](const Reply* r) {
                    if (r == nullptr) return reactor->Finish(StateUnknown(applier_));
                    Status outcome = r->outcome;
                    if (outcome.ok()) {
                      auto issued = issuer_.Issue(*shared, r->issued, hosts);
                      if (issued) {
                        reply->set_certificate_pem(*std::move(issued));
                        reply->set_ca_pem(issuer_.bundle());
                      } else {
                        outcome = issued.error();
                      }
                    }
                    ToProto(outcome, reply->mutable_outcome());
                    reactor->Finish(grpc::Status::OK);
                  });
  return reactor;
}

grpc::ServerUnaryReactor* CertificateService::Revoke(grpc::CallbackServerContext* context,
                                                     const pb::RevokeRequest* request,
                                                     pb::RevokeReply* reply) {
  Status status = CheckRole(request->role());
  if (status.ok()) status = ValidateName("name", request->name());
  if (!status.ok()) return ReplyOutcome(context, reply, status);
  const std::string why =
      request->why().empty() ? "by an operator" : CutText(request->why(), kRevokeWhyBytesMax);
  return recorded_.CarryOut(
      context, "Revoke", *request, reply,
      [&](RequestId id) {
        Log(LogLevel::kWarn, "CertificatesRevoked",
            {Kv("role", request->role()), Kv("name", request->name()), Kv("why", why)});
        return IdentityRevoked{id, request->role(), request->name(), why};
      },
      [this](const Reply&) { feed_.ReadNow(); });
}

grpc::ServerUnaryReactor* CertificateService::ListIdentities(
    grpc::CallbackServerContext* context, const pb::ListIdentitiesRequest* /*request*/,
    pb::ListIdentitiesReply* reply) {
  return AnswerQuery(applier_, context, [this, reply](const State& state, Epoch) {
    for (const IdentityRecord& record : state.Identities()) {
      pb::Identity* one = reply->add_identities();
      one->set_role(record.role);
      one->set_name(record.name);
      one->set_issued_wall_nanos(record.issued_wall_nanos);
      one->set_expires_wall_nanos(record.expires_wall_nanos);
      one->set_revoked_s(record.revoked_s);
      one->set_why(record.why);
    }
    for (const std::string& hash : issuer_.hashes()) reply->add_ca_hashes(hash);
  });
}

grpc::ServerWriteReactor<pb::Trust>* CertificateService::WatchTrust(
    grpc::CallbackServerContext* context, const pb::WatchTrustRequest* /*request*/) {
  // A certificate without a name cannot be revoked.
  const CallerIdentity identity = IdentityOf(*context).value_or(CallerIdentity());
  return feed_.Watch(identity.uri, identity.not_before_s);
}

grpc::ServerUnaryReactor* EnrollmentService::Enroll(grpc::CallbackServerContext* context,
                                                    const pb::EnrollRequest* request,
                                                    pb::EnrollReply* reply) {
  const std::string from = context->peer();
  const auto refuse = [=](const Status& why) {
    Log(LogLevel::kWarn, "JoinRefused",
        {Kv("from", from), Kv("name", CutText(request->name(), 128)),
         Kv("token", CutText(request->token_id(), 16)), Kv("why", why.ToString())});
    ToProto(why, reply->mutable_outcome());
  };
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto checked =
      certificates::CheckEnrollment({request->token_id(), request->secret(), request->name(),
                                     request->request_pem(), TextsOf(request->hosts())});
  if (!checked) {
    refuse(checked.error());
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  const RequestId id = applier_.NextId();
  TokenUsed event{id,
                  request->token_id(),
                  certificates::HashSecret(request->token_id(), request->secret()),
                  request->name(),
                  checked->request.Hash(),
                  issuer_.validity_s()};
  // A shared_ptr, since handlers are copied.
  const auto shared = std::make_shared<Request>(std::move(checked->request));
  applier_.Submit(
      Event(std::move(event)), id, [=, this, asked = std::move(checked->hosts)](const Reply* r) {
        if (r == nullptr) {
          return reactor->Finish({grpc::StatusCode::UNAVAILABLE,
                                  "this coordinator does not lead now; of several coordinators, "
                                  "give all addresses, separated by commas"});
        }
        reply->set_wall_nanos(clock_.WallNanos());
        Result<std::string> issued = "";
        if (r->outcome.ok()) {
          const bool serves = r->issued.role == ToString(Role::kAgent);
          issued = issuer_.Issue(*shared, r->issued, serves ? asked : std::vector<std::string>());
        }
        if (!r->outcome.ok() || !issued) {
          refuse(r->outcome.ok() ? issued.error() : r->outcome);
          return reactor->Finish(grpc::Status::OK);
        }
        reply->set_certificate_pem(*std::move(issued));
        reply->set_ca_pem(issuer_.bundle());
        reply->set_role(r->issued.role);
        reply->set_cluster(cluster_);
        reply->set_coordinator(coordinators_);
        Log(LogLevel::kInfo, "Joined",
            {Kv("role", r->issued.role), Kv("name", r->issued.name), Kv("from", from),
             Kv("until", FormatUtc(r->issued.not_after_s * kSecondNs))});
        reactor->Finish(grpc::Status::OK);
      });
  return reactor;
}

Result<std::unique_ptr<grpc::Server>> StartJoinServer(EnrollmentService& service,
                                                      Endpoint& endpoint, const TlsFiles& tls) {
  constexpr int kMessageBytesMax = 64 << 10;
  constexpr size_t kMemoryBytesMax = 32 << 20;
  constexpr int kHandshakeMs = 5'000;
  constexpr int kConnectionMs = 30'000;
  HOLDFAST_ASSIGN_OR_RETURN(auto credentials, MakeOpenTlsServerCredentials(tls));
  const Status in_use = UnavailableError(
      fmt::format("address {} is in use by another process; choose another with join.listen",
                  endpoint.ToString()));
  if (IsListening(endpoint)) return Fail(in_use);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kConnectionMs);
  builder.SetResourceQuota(grpc::ResourceQuota("join").Resize(kMemoryBytesMax));
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  int bound_port = 0;
  builder.AddListeningPort(endpoint.ToString(), credentials, &bound_port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound_port == 0) return Fail(in_use);
  if (endpoint.kind == Endpoint::Kind::kTcp) endpoint.port = static_cast<uint16_t>(bound_port);
  return server;
}

}  // namespace holdfast::coord
