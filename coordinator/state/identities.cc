#include "coordinator/state/identities.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/certificates/authority.h"
#include "base/certificates/join_token.h"

namespace holdfast::coord {
namespace {
constexpr int64_t kSecondNanos = 1'000'000'000;
constexpr const char* kAgentRole = "agent";

IdentityKey IdentityKeyOf(const std::string& role, const std::string& name) { return {role, name}; }

void StoreToken(Context& context, const TokenRecord& record) {
  context.cluster.tokens[record.id] = record;
  context.effects.emplace_back(PutToken{record});
}

void StoreIdentity(Context& context, const IdentityRecord& record) {
  context.cluster.identities[IdentityKeyOf(record.role, record.name)] = record;
  context.effects.emplace_back(PutIdentity{record});
}

void DropOldTokens(Context& context) {
  std::erase_if(context.cluster.tokens, [&context](const auto& entry) {
    const bool old = context.at.wall_nanos > entry.second.expires_wall_nanos + kTokenKeptNanos;
    if (old) context.effects.emplace_back(EraseToken{entry.first});
    return old;
  });
}

/// Records that a certificate is issued for the name, and answers with its contents.
void Grant(Context& context, RequestId request, const std::string& role, const std::string& name,
           const std::string& key, int64_t validity_s) {
  IdentityRecord& known = context.cluster.identities[IdentityKeyOf(role, name)];
  const int64_t now = context.at.wall_nanos / kSecondNanos;
  Reply reply;
  reply.request = request;
  reply.issued.role = role;
  reply.issued.name = name;
  // A name that joins again after a revocation gets certificates that begin after it.
  reply.issued.not_before_s = std::max(now - certificates::kBackdateSeconds, known.revoked_s + 1);
  reply.issued.not_after_s = std::max(now, reply.issued.not_before_s) + validity_s;
  IdentityRecord record = known;
  record.role = role;
  record.name = name;
  record.key = key;
  record.issued_wall_nanos = context.at.wall_nanos;
  record.expires_wall_nanos = reply.issued.not_after_s * kSecondNanos;
  StoreIdentity(context, record);
  context.effects.emplace_back(std::move(reply));
}

/// Checks everything about the token but the name.
Status CheckToken(const Context& context, const TokenUsed& event, const TokenRecord* token) {
  // An unknown ID is compared, too, so that the time of the answer does not show which IDs exist.
  const std::string nothing(event.secret_hash.size(), '0');
  const bool equal = certificates::EqualSecrets(event.secret_hash,
                                                token == nullptr ? nothing : token->secret_hash);
  if (token == nullptr || !equal) {
    return PermissionDeniedError(
        "unknown token: this cluster has no such token. Copy the whole line of `holdfast token "
        "create`, or create another token");
  }
  // The same key again is the repetition of a join whose answer was lost.
  if (!token->used_key.empty() && token->used_key != event.key) {
    return AlreadyExistsError(
        fmt::format("used token: '{}' joined with this token, and a token works once. If that was "
                    "not you, revoke it: holdfast revoke {} {}. Create another token",
                    token->used_name, token->role, token->used_name));
  }
  if (context.at.wall_nanos > token->expires_wall_nanos) {
    return DeadlineExceededError(
        fmt::format("expired token: it was valid until {}, and the coordinator's clock has {}; "
                    "create another token (--ttl sets its time)",
                    FormatUtc(token->expires_wall_nanos), FormatUtc(context.at.wall_nanos)));
  }
  return Status::Ok();
}

/// Checks whether the machine may join under the name.
Status CheckName(const Context& context, const TokenUsed& event, const TokenRecord& token) {
  const std::string& taken = token.used_key.empty() ? token.name : token.used_name;
  if (!taken.empty()) {
    if (event.name == taken) return Status::Ok();
    return PermissionDeniedError(
        fmt::format("wrong node: the token is for {} '{}', and this machine joins as '{}'; use "
                    "--name {}, or create a token with --node {}",
                    token.role, taken, event.name, taken, event.name));
  }
  const auto known = context.cluster.identities.find(IdentityKeyOf(token.role, event.name));
  if (known == context.cluster.identities.end() ||
      known->second.expires_wall_nanos < context.at.wall_nanos) {
    return Status::Ok();
  }
  return FailedPreconditionError(
      fmt::format("{} '{}' has a certificate until {}: choose another name with --name, or replace "
                  "that machine with a token created with --node {}",
                  token.role, event.name, FormatUtc(known->second.expires_wall_nanos), event.name));
}
}  // namespace

void OnTokenCreated(Context& context, const TokenCreated& event) {
  DropOldTokens(context);
  if (context.cluster.tokens.size() >= kTokensMax) {
    return Answer(
        context, event.request,
        ResourceExhaustedError(fmt::format(
            "there are {} tokens, the limit; each is removed a day after its end", kTokensMax)));
  }
  StoreToken(context, event.record);
  Answer(context, event.request, Status::Ok());
}

void OnTokenUsed(Context& context, const TokenUsed& event) {
  const auto found = context.cluster.tokens.find(event.id);
  const TokenRecord* token = found == context.cluster.tokens.end() ? nullptr : &found->second;
  Status status = CheckToken(context, event, token);
  if (status.ok()) status = CheckName(context, event, *token);
  if (!status.ok()) return Answer(context, event.request, std::move(status));
  TokenRecord used = *token;
  used.used_key = event.key;
  used.used_name = event.name;
  StoreToken(context, used);
  Grant(context, event.request, used.role, event.name, event.key, event.validity_s);
}

void OnIdentityRenewed(Context& context, const IdentityRenewed& event) {
  const auto known = context.cluster.identities.find(IdentityKeyOf(event.role, event.name));
  if (known != context.cluster.identities.end() && event.not_before_s <= known->second.revoked_s) {
    return Answer(context, event.request,
                  PermissionDeniedError(fmt::format("{} '{}' is revoked: {}", event.role,
                                                    event.name, known->second.why)));
  }
  Grant(context, event.request, event.role, event.name, event.key, event.validity_s);
}

void OnIdentityRevoked(Context& context, const IdentityRevoked& event) {
  IdentityRecord record = context.cluster.identities[IdentityKeyOf(event.role, event.name)];
  record.role = event.role;
  record.name = event.name;
  record.revoked_s = context.at.wall_nanos / kSecondNanos;
  record.why = event.why;
  // No certificate is left that keeps others from the name.
  record.expires_wall_nanos = std::min(record.expires_wall_nanos, context.at.wall_nanos);
  StoreIdentity(context, record);
  const Node* node = event.role == kAgentRole ? FindNode(context, event.name) : nullptr;
  if (node != nullptr && node->attached) {
    context.effects.emplace_back(CloseAttach{
        node->attach,
        PermissionDeniedError(fmt::format("the certificate of node '{}' is revoked", event.name))});
  }
  Answer(context, event.request, Status::Ok());
}

}  // namespace holdfast::coord
