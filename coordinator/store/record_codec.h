#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "coordinator/state/records.h"

// Keys and values of the metadata, as docs/formats/metadata.md describes them. A checksum covers
// each value together with its key, so that damage and misplacement are both detected.

namespace holdfast::coord {

inline constexpr std::string_view kClusterKey = "meta/cluster";
inline constexpr std::string_view kEpochKey = "meta/epoch";
inline constexpr std::string_view kLifeKey = "meta/life";
inline constexpr std::string_view kJobPrefix = "job/";
inline constexpr std::string_view kLineagePrefix = "lineage/";
inline constexpr std::string_view kVersionPrefix = "version/";
inline constexpr std::string_view kRunPrefix = "run/";
inline constexpr std::string_view kIncidentPrefix = "incident/";
inline constexpr std::string_view kQuarantinePrefix = "quarantine/";
inline constexpr std::string_view kDrainPrefix = "drain/";
inline constexpr std::string_view kSuspectPrefix = "suspect/";
inline constexpr std::string_view kTokenPrefix = "token/";
inline constexpr std::string_view kIdentityPrefix = "identity/";

std::string JobKey(const std::string& job);
std::string LineageKey(const std::string& job, Incarnation incarnation);
std::string VersionKey(const std::string& job, VersionId version);
std::string RunKey(const std::string& job);
std::string IncidentKey(uint64_t id);
std::string QuarantineKey(const std::string& node);
std::string DrainKey(const std::string& node);
std::string SuspectKey(const std::string& node);
std::string TokenKey(const std::string& id);
std::string IdentityRecordKey(const std::string& role, const std::string& name);

std::string EncodeJob(const JobRecord& record);
std::string EncodeLineage(const LineageRecord& record);
std::string EncodeVersion(const VersionRecord& record);
std::string EncodeRun(const RunRecord& record);
std::string EncodeIncident(const IncidentRecord& record);
std::string EncodeQuarantine(const QuarantineRecord& record);
std::string EncodeDrain(const DrainRecord& record);
std::string EncodeSuspect(const SuspectRecord& record);
std::string EncodeToken(const TokenRecord& record);
std::string EncodeIdentity(const IdentityRecord& record);
std::string EncodeCluster(const std::string& name);
std::string EncodeEpoch(Epoch epoch);
std::string EncodeLife(LifeId life);

// The decoders return DataLoss for damaged values or keys, and Unsupported for a newer format.
Result<JobRecord> DecodeJob(std::string_view key, std::string_view value);
Result<LineageRecord> DecodeLineage(std::string_view key, std::string_view value);
Result<VersionRecord> DecodeVersion(std::string_view key, std::string_view value);
Result<RunRecord> DecodeRun(std::string_view key, std::string_view value);
Result<IncidentRecord> DecodeIncident(std::string_view key, std::string_view value);
Result<QuarantineRecord> DecodeQuarantine(std::string_view key, std::string_view value);
Result<DrainRecord> DecodeDrain(std::string_view key, std::string_view value);
Result<SuspectRecord> DecodeSuspect(std::string_view key, std::string_view value);
Result<TokenRecord> DecodeToken(std::string_view key, std::string_view value);
Result<IdentityRecord> DecodeIdentity(std::string_view key, std::string_view value);
Result<std::string> DecodeCluster(std::string_view value);
Result<Epoch> DecodeEpoch(std::string_view value);
Result<LifeId> DecodeLife(std::string_view value);

}  // namespace holdfast::coord
