#include <fmt/format.h>

#include "coordinator/store/metadata.pb.h"
#include "coordinator/store/record_codec.h"
#include "coordinator/store/record_frame.h"

// The records of join tokens and of the names that certificates were issued for.

namespace holdfast::coord {

std::string TokenKey(const std::string& id) { return fmt::format("{}{}", kTokenPrefix, id); }

std::string IdentityRecordKey(const std::string& role, const std::string& name) {
  return fmt::format("{}{}/{}", kIdentityPrefix, role, name);
}

std::string EncodeToken(const TokenRecord& record) {
  metadata::Token payload;
  payload.set_secret_hash(record.secret_hash);
  payload.set_role(record.role);
  payload.set_name(record.name);
  payload.set_created_wall_nanos(record.created_wall_nanos);
  payload.set_expires_wall_nanos(record.expires_wall_nanos);
  payload.set_used_key(record.used_key);
  payload.set_used_name(record.used_name);
  return FrameRecord(TokenKey(record.id), payload);
}

Result<TokenRecord> DecodeToken(std::string_view key, std::string_view value) {
  TokenRecord record;
  std::string_view rest;
  HOLDFAST_RETURN_IF_ERROR(SplitKey(key, kTokenPrefix, record.id, rest));
  metadata::Token payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  record.secret_hash = payload.secret_hash();
  record.role = payload.role();
  record.name = payload.name();
  record.created_wall_nanos = payload.created_wall_nanos();
  record.expires_wall_nanos = payload.expires_wall_nanos();
  record.used_key = payload.used_key();
  record.used_name = payload.used_name();
  return record;
}

std::string EncodeIdentity(const IdentityRecord& record) {
  metadata::Identity payload;
  payload.set_role(record.role);
  payload.set_name(record.name);
  payload.set_key(record.key);
  payload.set_issued_wall_nanos(record.issued_wall_nanos);
  payload.set_expires_wall_nanos(record.expires_wall_nanos);
  payload.set_revoked_s(record.revoked_s);
  payload.set_why(record.why);
  return FrameRecord(IdentityRecordKey(record.role, record.name), payload);
}

Result<IdentityRecord> DecodeIdentity(std::string_view key, std::string_view value) {
  IdentityRecord record;
  metadata::Identity payload;
  HOLDFAST_RETURN_IF_ERROR(UnframeRecord(key, value, payload));
  record.role = payload.role();
  record.name = payload.name();
  if (key != IdentityRecordKey(record.role, record.name)) {
    return Fail(BadRecord(key, "another name"));
  }
  record.key = payload.key();
  record.issued_wall_nanos = payload.issued_wall_nanos();
  record.expires_wall_nanos = payload.expires_wall_nanos();
  record.revoked_s = payload.revoked_s();
  record.why = payload.why();
  return record;
}

}  // namespace holdfast::coord
