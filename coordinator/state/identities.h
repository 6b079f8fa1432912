#pragma once

#include <vector>

#include "coordinator/state/cluster.h"

// Which machines and persons get certificates: by a join token, once; by a certificate that they
// have, until its name is revoked. The caller issues a certificate only after the effects are
// stored. Each time here is wall time, because tokens and certificates outlive the coordinator.

namespace holdfast::coord {

/// Tokens that are stored at once, and the time for which an expired one is kept, so that its use
/// gets an exact error.
inline constexpr size_t kTokensMax = 4096;
inline constexpr int64_t kTokenKeptNanos = 86'400LL * 1'000'000'000;

void OnTokenCreated(Context& context, const TokenCreated& event);
/// Answers with what the certificate states. Errors: PermissionDenied: unknown token, wrong secret
/// or wrong name. AlreadyExists: used before. DeadlineExceeded: expired. FailedPrecondition: a
/// valid certificate has the name, and the token does not name it.
void OnTokenUsed(Context& context, const TokenUsed& event);
/// Answers with what the new certificate states. PermissionDenied: the name is revoked.
void OnIdentityRenewed(Context& context, const IdentityRenewed& event);
/// Refuses all certificates of a name up to now, and ends the streams of an agent.
void OnIdentityRevoked(Context& context, const IdentityRevoked& event);

}  // namespace holdfast::coord
